// Logits are sorted, the largest first.
attnbookFigures.compute.next_token = ({ prompt, temperature, top_k, top_p }, { contexts }, { sum, softmax }) => {
  const { text, tokens, logits } = contexts[prompt], hot = logits.map((s) => s / temperature);
  const model = softmax(logits), kept = softmax(hot.slice(0, top_k));
  let total = 0, left = 0;
  while (left < top_k && (top_p === 1 || total < top_p)) total += kept[left++];
  const chosen = model.map((_, i) => (i < left ? kept[i] / total : 0));
  const rows = (p) => [...p.slice(0, 12), sum(p.slice(12))];
  const entropy = (p) => sum(p.map((x) => x && -x * Math.log2(x)));
  const before = rows(model), after = rows(chosen), why = before.map((_, i) => (i < left ? 0 : i < top_k ? 2 : 1));
  return {
    text, tokens, left, why, before, after,
    bars: rows(softmax(hot)).map((p, i) => (why[i] ? p : after[i])),
    entropy: entropy(chosen), own: entropy(model), lost: sum(model.slice(left)),
    case: left > 511 ? "all" : left > 1 ? "several" : "one",
  };
};
