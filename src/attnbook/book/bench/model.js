// What model.py computes, forward and backward, in plain lists of rows.
(() => {
  const map = (m, f) => m.map((row, i) => row.map((x, j) => f(x, i, j)));
  const zeros = (like) => map(like, () => 0);
  const transposed = (m) => m[0].map((_, j) => m.map((row) => row[j]));
  const times = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, x, k) => sum + x * b[k][j], 0)));
  const plus = (a, b) => map(a, (x, i, j) => x + b[i][j]);
  const softmax = (row) => {
    const top = Math.max(...row), powers = row.map((x) => Math.exp(x - top));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((x) => x / sum);
  };

  // The stored numbers as the switches have them.
  const stored = ({ stored: own, identity, same }) => {
    const eye = identity && map(own.W_Q, (_, i, j) => Number(i === j));
    const n = { ...own, ...(identity && { W_Q: eye, W_K: eye, W_V: eye }) };
    return same ? { ...n, W_K: n.W_Q } : n;
  };
  const factors = (settings) => ({
    row: settings.rooted ? Math.sqrt(settings.stored.E[0].length) : 1,
    logit: settings.scaled ? 1 / Math.sqrt(settings.stored.W_Q[0].length) : 1,
  });
  const following = ({ ids, aim }) => [...ids.slice(1), aim];
  // Word -> its share in the loss.
  const shares = ({ ids, every }) => ids.map((_, i) => (every ? 1 / ids.length : Number(i === ids.length - 1)));

  const forward = (settings) => {
    const n = stored(settings), by = factors(settings), next = following(settings);
    const keep = (name, computed) => {
      n[name] = map(computed, (x, i, j) => settings.pinned[`${name},${i},${j}`] ?? x);
      return n[name];
    };
    keep("X", settings.ids.map((id, i) => n.E[id].map((x, j) => x * by.row + n.P[i][j])));
    for (const name of "QKV") keep(name, times(n.X, n[`W_${name}`]));
    keep("S", map(times(n.Q, transposed(n.K)), (x) => x * by.logit));
    n.softmax = n.S.map((row, i) =>  // as it is before a number is pinned
      settings.edges[i].includes(true) ? softmax(row.map((x, j) => (settings.edges[i][j] ? x : -Infinity)))
        : row.map(() => 0));
    keep("A", n.softmax);
    keep("D", times(keep("O", times(n.A, n.V)), n.W_O));
    keep("Y", plus(n.X, n.D));
    n.before = map(times(n.Y, n.W_1), (x) => x + n.b[0][0]);
    keep("H", map(n.before, (x) => Math.max(0, x)));
    keep("Z", plus(n.Y, keep("F", times(n.H, n.W_2))));
    keep("L", times(n.Z, n.U));
    n.probabilities = n.L.map(softmax);
    n.losses = n.probabilities.map((row, i) => -Math.log(row[next[i]]));
    n.loss = shares(settings).reduce((sum, share, i) => sum + share * n.losses[i], 0);
    return n;
  };

  // By how much the loss rises where a number rises; what is pinned hangs on nothing.
  const backward = (settings) => {
    const n = forward(settings), by = factors(settings), next = following(settings), g = {};
    const share = shares(settings);
    // A number's gradient, and the part that goes on to what it was computed from.
    const pass = (name, gradient) => {
      g[name] = gradient;
      return map(gradient, (x, i, j) => (`${name},${i},${j}` in settings.pinned ? 0 : x));
    };
    // Of a product: to its left side; its right side, a stored matrix, adds up what it gets.
    const through = (gradient, left, name) => {
      const own = times(transposed(n[left]), gradient);
      g[name] = g[name] ? plus(g[name], own) : own;
      return times(gradient, transposed(n[name]));
    };
    const dL = pass("L", map(n.probabilities, (p, i, j) => share[i] * (p - (j === next[i]))));
    const dZ = pass("Z", through(dL, "Z", "U"));
    const dH = pass("H", through(pass("F", dZ), "H", "W_2"));
    const dUnit = map(dH, (x, i, j) => (n.before[i][j] > 0 ? x : 0));
    g.b = [[dUnit.flat().reduce((a, b) => a + b)]];
    const dY = pass("Y", plus(dZ, through(dUnit, "Y", "W_1")));
    const dO = pass("O", through(pass("D", dY), "O", "W_O"));
    const dA = pass("A", times(dO, transposed(n.V)));
    const dS = pass("S", n.softmax.map((row, i) => {
      const mean = row.reduce((sum, a, j) => sum + a * dA[i][j], 0);
      return row.map((a, j) => a * (dA[i][j] - mean));
    }));
    const scaled = map(dS, (x) => x * by.logit);
    const d = { Q: times(scaled, n.K), K: times(transposed(scaled), n.Q), V: times(transposed(n.A), dO) };
    let dX = dY;
    for (const name of "QKV") {
      const to = settings.same && name === "K" ? "W_Q" : `W_${name}`;
      dX = plus(dX, through(pass(name, d[name]), "X", to));
    }
    if (settings.same) g.W_K = g.W_Q;
    g.P = pass("X", dX);
    g.E = zeros(n.E);
    settings.ids.forEach((id, i) => g.P[i].forEach((x, j) => { g.E[id][j] += x * by.row; }));
    return g;
  };

  window.attnbookBench = { forward, backward };
})();
