"""What an auditor uses: everything around the kernel, which decides alone. Nothing here can raise a verdict, only lower it."""
