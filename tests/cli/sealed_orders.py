"""A worker's module with a codec: its payloads never leave it in clear."""
from __future__ import annotations

from fusee_mp import AesGcm, Ctx, query, signal, update, workflow

PAID = signal("paid", str)
codec = other = AesGcm({"k1": b"1" * 32})
wrong = AesGcm({"k9": b"9" * 32})
number = 3


@workflow
async def sealed(ctx: Ctx, card: str) -> str:
    seen: list[str] = []

    def heard(word: str) -> str:
        seen.append(word)
        return f"heard {word}"

    ctx.on_update(update("heard", str, returns=str), heard)
    ctx.on_query(query("seen", returns=list[str]), lambda: seen)
    return f"{card} paid by {await ctx.wait_for(PAID)}"
