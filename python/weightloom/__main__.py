"""`python -m weightloom`: the `weightloom` command."""

from weightloom._command import main

main()
