"""What a campaign did and what came of it, counted from many threads."""

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """`faults`: what was injected. `outcomes`: what clients saw. `violations`: what must not be."""

    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.faults[name] += count

    def saw(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.outcomes[name] += count

    def violated(self, what: str) -> None:
        with self._lock:
            self.violations.append(what)

    def counts(self) -> dict[str, object]:
        """The ledger as a result file holds it."""
        counted = {"faults": self.faults, "outcomes": self.outcomes}
        sums = {name: dict(sorted(counter.items())) for name, counter in counted.items()}
        return {**sums, "violations": list(self.violations)}

    def text(self) -> str:
        """The ledger as people read it."""
        lines = ["faults injected"]
        lines += [f"  {count:6} {name}" for name, count in sorted(self.faults.items())]
        lines += ["what clients, workers and the auditor saw"]
        lines += [f"  {count:6} {name}" for name, count in sorted(self.outcomes.items())]
        lines += [f"violations: {len(self.violations)}"]
        lines += [f"  {what}" for what in self.violations[:20]]
        return "\n".join(lines)
