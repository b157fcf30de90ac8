"""`intarsia-admin`: what the platform's operator does at a shell, over the services of the apps."""
