"""Compiler caches of any command: captured as a bundle of entries, restored on a node, and accounted for.

    capture:  command on empty caches -> again on what it left -> entries that were used -> bundle
    run:      reference -> entries that fit this host -> a directory -> command -> what it used, what it compiled

| Module     | What it does                                                       |
|------------|--------------------------------------------------------------------|
| `entries`  | one file of a cache, and what it is                                |
| `roots`    | the table of caches                                                |
| `pins`     | what a command is started with, so that only fitting entries match |
| `capture`  | the two runs                                                       |
| `collect`, `restore` | directory to entries, entries to directory              |
| `record`   | entries to artifact: guards and factors                            |
| `prepare`, `run`, `warm` | the pod's side                                      |
| `publish`, `again` | bundles to push, and their proof on a worker             |

Nothing here imports torch: entries are files.
"""
