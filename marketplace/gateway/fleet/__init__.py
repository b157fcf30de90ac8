"""The fleet link in the gateway process: views of replicas come in and go on to other processes, news go out."""
