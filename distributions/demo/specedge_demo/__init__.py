"""The whole demo model of specedge and its drafts, in `bundled/`; specedge finds them there."""
