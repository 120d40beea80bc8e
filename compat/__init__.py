"""The packages that stand in for others: `faster_whisper` over specedge, for programs that import it by name.

This folder goes on Python's path as it is: `specedge compat` puts it in front for one program, the distribution
`specedge-faster-whisper` at the end, where an installed faster-whisper comes first. So nothing else may lie in it.
"""
