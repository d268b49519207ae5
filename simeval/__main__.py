"""``python -m simeval``."""

from simeval.cli import main

raise SystemExit(main())
