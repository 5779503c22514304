"""The V2 inference protocol: requests, answers, framing, raw requests, errors."""
