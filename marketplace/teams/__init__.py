"""The people of an organization: members, invites, transfer of ownership; its names and its logo."""
