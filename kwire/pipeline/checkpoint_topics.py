"""The file `topics.json` in a stream's checkpoint, which lists the topics that the stream has read.

The file has topic ids, because a topic that was recreated under the same name has another id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kwire.pipeline.config import ConfigError
from kwire.pipeline.origin import Origin

TOPICS: Final = "topics.json"


def record_topics(checkpoint: Path, found: Mapping[str, Origin]) -> None:
    """Add topics to the file. `found` has the current origin of each topic that the stream reads.

    Raises ConfigError if a topic was recreated or belongs to another cluster, if the file lists only other
    topics, or if it is malformed.
    """
    path = checkpoint / TOPICS
    known = _recorded_topics(path)
    if known and found and not known.keys() & found.keys():
        raise ConfigError(
            f"the checkpoint {checkpoint} belongs to {', '.join(sorted(known))}, and the input is "
            f"{', '.join(sorted(found))}: choose another checkpoint"
        )
    for topic, origin in found.items():
        before = known.get(topic, origin)
        if not before.is_same(origin._replace(topic_id=before.topic_id)):
            raise ConfigError(
                f"the checkpoint {checkpoint} belongs to topic {topic} of cluster {before.cluster}, and the "
                f"input is cluster {origin.cluster}: choose another checkpoint"
            )
        if not before.is_same(origin):
            raise ConfigError(
                f"topic {topic} was deleted and recreated after the checkpoint {checkpoint} was "
                f"made, so its offsets are different: choose another checkpoint"
            )
        known[topic] = before.completed(origin)
    checkpoint.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({topic: str(origin) for topic, origin in known.items()}), "utf-8")
    os.replace(unfinished, path)


def _recorded_topics(path: Path) -> dict[str, Origin]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {topic: Origin.of(text) for topic, text in content.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} does not list topics: {error}") from None
