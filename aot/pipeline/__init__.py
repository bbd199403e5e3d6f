"""The sequences of design.md, section 5: each step one function, each arrow forward.

    submit   pack the source -> open_uploads -> put -> submit -> follow          (`submit`)
    build    source -> sandboxed compile -> bundle -> qualify -> staged bundle   (`build`)
    publish  open_uploads -> put the missing -> publish, or push                 (`publish`)
    ensure   key -> find -> hit, or submit and follow, or build here -> lock     (`ensure`)

Layer 3: everything below is called from here, and nothing here knows who calls: a worker, the CLI or a CI step.
"""

from aot.pipeline.build import Question, Staged, build_bundle, requalify_bundle
from aot.pipeline.ensure import Ensured, Target, ensure_project
from aot.pipeline.profiles import observe_profiles
from aot.pipeline.publish import publish_bundle, push_bundle
from aot.pipeline.source import PackedSource, fetch_source, open_source, pack_factory, pack_program
from aot.pipeline.submit import follow_build, submit_spec

__all__ = [
    "Ensured",
    "PackedSource",
    "Question",
    "Staged",
    "Target",
    "build_bundle",
    "ensure_project",
    "fetch_source",
    "follow_build",
    "observe_profiles",
    "open_source",
    "pack_factory",
    "pack_program",
    "publish_bundle",
    "push_bundle",
    "requalify_bundle",
    "submit_spec",
]
