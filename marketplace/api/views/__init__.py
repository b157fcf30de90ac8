"""One APIView for each operation or resource, with its input serializer inside."""
