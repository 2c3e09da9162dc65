attnbookFigures.compute.value_pulls = (settings, data, { dot, softmax }) => {
  const values = [1, 2, 3].map((j) => [settings["x" + j], settings["y" + j]]);
  const turn = (settings.angle * Math.PI) / 180, wanted = [Math.cos(turn), Math.sin(turn)];
  const clean = (x) => (Math.abs(x) < 1e-9 ? 0 : x), trail = [];
  let logits = [5, 3, 2].map(Math.log), weights, ahead, pushes;
  for (let step = 0; step <= settings.steps; step++) {
    weights = softmax(logits);
    const o = [0, 1].map((i) => dot(weights, values.map((v) => v[i])));
    trail.push(o);
    ahead = values.map((v) => dot(v, wanted) - dot(o, wanted));
    pushes = weights.map((a, j) => a * ahead[j]);
    logits = logits.map((s, j) => s + pushes[j]);
  }
  const average = trail.at(-1);
  pushes = pushes.map(clean);
  return {
    weights, average, values, pushes,
    radii: weights.map((a) => 6 + 10 * Math.sqrt(a)),
    tip: average.map((o, i) => o + 1.1 * wanted[i]),
    tilt: 90 - settings.angle,
    trail_x: trail.map(([x]) => x), trail_y: trail.map(([, y]) => y),
    ahead: ahead.map(clean),
    drawn: pushes.map((push) => Math.max(-0.55, Math.min(0.55, push))),
    moves: pushes.map((push) => 1 + Math.sign(push)),
  };
};
