"""``python -m wsm``: the command ``wsm``, where no script of that name is on the path."""

from wsm_entry import main

if __name__ == "__main__":
    main()
