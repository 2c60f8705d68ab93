"""What KV_AWARE knows: hashes of prompts, mirrors of the engines' block caches, queued work, and prices. Pure."""
