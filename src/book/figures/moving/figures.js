// Figures that move. Python drew the default state and wrote beside each mark, as data-bind, how its
// attributes follow from the figure's numbers; here the numbers are computed again, by the figure's
// own file, when a control moves.
(() => {
  "use strict";
  const lists = {
    range: (n) => Array.from({ length: n }, (_, i) => i),
    sum: (xs) => xs.reduce((a, b) => a + b, 0),
    bare: (x) => x.toFixed(2).replace(/^0|\.00$/, ""),
    dot: (a, b) => a.reduce((total, x, i) => total + x * b[i], 0),
    softmax: (logits) => {
      const most = Math.max(...logits.filter((s) => s > -Infinity));
      const powers = logits.map((s) => Math.exp(s - most));
      const total = powers.reduce((a, b) => a + b, 0);
      return powers.map((p) => p / total);
    },
  };
  // Figure -> (settings, data, lists) => numbers.
  const compute = {};

  const lookUp = (path, numbers) => path.split(".").reduce((at, key) => at[key], numbers);
  const formatted = (value, spec) => {
    if (typeof value !== "number") return value === true ? "True" : value === false ? "False" : String(value);
    if (!isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "NaN";
    // Without its sign: toFixed rounds a half up, which is away from zero then.
    const percent = spec?.endsWith("%"), size = Math.abs(percent ? 100 * value : value);
    const text = !spec ? `${+size.toPrecision(6)}`.replace("-", "−")
      : spec === "," ? size.toFixed(0).replace(/\B(?=(\d{3})+$)/g, ",") : size.toFixed(spec[1]);
    return (value < 0 && /[1-9]/.test(text) ? "−" : "") + text + (percent ? "\xa0%" : "");
  };
  const fill = (template, numbers) =>
    template.replace(/\{([\w.]+)(?::([^}]*))?\}/g, (_, path, spec) => formatted(lookUp(path, numbers), spec));
  const round = (x) => String(Math.round(x * 100) / 100 || 0);
  const number = (numbers, path, scale, offset) => round(offset + scale * lookUp(path, numbers));
  const kinds = {
    number,
    text: (numbers, template) => fill(template, numbers),
    pick: (numbers, path, ...options) => options[Number(lookUp(path, numbers))],
    points: (numbers, ys, scale, offset, xs, xScale, xOffset) => {
      const across = xs && lookUp(xs, numbers);
      return lookUp(ys, numbers)
        .map((y, i) => Number.isFinite(y) &&
          `${round(xOffset + xScale * (across ? across[i] : i))},${round(offset + scale * y)}`)
        .filter(Boolean).join(" ");
    },
    path: (...from) => `M${kinds.points(...from)}`,
    arrow: (numbers, x0, y0, x1, y1, scale, x, y, width) => {
      const at = (path) => (path ? lookUp(path, numbers) : 0);
      const ax = x + scale * at(x0), ay = y - scale * at(y0);
      const bx = x + scale * at(x1), by = y - scale * at(y1);
      const length = Math.hypot(bx - ax, by - ay);
      const [ux, uy] = length ? [(bx - ax) / length, (by - ay) / length] : [1, 0];
      const head = Math.min(4 * width + 2, length);
      const half = width / 2, wing = Math.min(1.7 * width + 1, head);
      const outline = [[0, half], [length - head, half], [length - head, wing], [length, 0]];
      for (const i of [2, 1, 0]) outline.push([outline[i][0], -outline[i][1]]);
      return outline
        .map(([p, q]) => `${round(ax + ux * p - uy * q)},${round(ay + uy * p + ux * q)}`).join(" ");
    },
    move: (numbers, x, y, scale, dx, dy, yScale, angle) =>
      `translate(${number(numbers, x, scale, dx)} ${number(numbers, y, yScale, dy)})` +
      (angle ? ` rotate(${round(lookUp(angle, numbers))})` : ""),
  };

  const enhance = (box) => {
    const needs = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const svg = box.querySelector("svg"), form = box.querySelector(".controls");
    const said = box.querySelector(".said"), settings = needs.settings;
    const bound = [...svg.querySelectorAll("[data-bind]")].map((mark) => [mark, JSON.parse(mark.dataset.bind)]);
    const cells = [...box.querySelectorAll(".numbers td")];
    let numbers;

    const draw = () => {
      numbers = { ...settings, ...compute[needs.name](settings, needs.data, lists) };
      for (const [mark, bindings] of bound)
        for (const [name, kind, ...rest] of bindings) {
          const value = kinds[kind](numbers, ...rest);
          if (!name) {
            if (mark.textContent !== value) mark.textContent = value;
          } else if (mark.getAttribute(name) !== value) mark.setAttribute(name, value);
        }
      const now = fill(typeof needs.says === "string" ? needs.says : needs.says[numbers.case], numbers);
      if (said.textContent !== now) said.textContent = now;
      cells.forEach((cell, i) => { cell.textContent = fill(needs.table[i], numbers); });
      // What would do nothing cannot be set.
      for (const name in numbers.idle)
        for (const input of form.querySelectorAll(`[name=${name}]`)) input.disabled = numbers.idle[name];
    };
    let asked = 0;
    const redraw = () => { asked ||= requestAnimationFrame(() => { asked = 0; draw(); }); };

    // Controls.
    const say = (input) => {
      const text = fill(needs.shown[input.name], settings);
      input.nextElementSibling.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    const take = (input) => {
      const listed = needs.values[input.name];
      settings[input.name] = listed ? listed[+input.value] : +input.value;
      say(input);
      redraw();
    };
    const set = (name, value) => {
      if (name === played?.name) playing(false);
      settings[name] = value;
      const input = form.elements[name];
      if (input?.type === "range") {
        input.value = needs.values[name] ? needs.values[name].indexOf(value) : value;
        say(input);
      }
    };
    form.addEventListener("input", ({ target }) => {
      if (!(target.name in settings)) return;
      if (target === played) playing(false);
      if (target.type === "range") return take(target);
      settings[target.name] = target.value;
      redraw();
    });
    form.addEventListener("click", ({ target }) => {
      const sets = JSON.parse(target.dataset.sets ?? "{}");
      for (const name in sets) set(name, sets[name]);
      redraw();
      const button = target.closest("button[aria-pressed]");
      if (!button) return;
      settings[button.name] = !settings[button.name];
      button.setAttribute("aria-pressed", settings[button.name]);
    });
    form.addEventListener("submit", (event) => event.preventDefault());

    // Play: a slider moves by itself, first from its beginning, then from where it was stopped. What it
    // comes by is not read out, but where it stops.
    const play = form.querySelector(".play"), played = play && form.elements[play.dataset.plays];
    let timer, begun = false;
    const playing = (on) => {
      clearTimeout(timer);
      begun = true;
      box.toggleAttribute("data-playing", on);
      said.setAttribute("aria-live", on ? "off" : "polite");
      play.textContent = on ? "❚❚ Pause" : "▶ Play";
      play.setAttribute("aria-label", play.ariaLabel.replace(/^\w+/, on ? "Pause" : "Play"));
    };
    const wait = () => { timer = setTimeout(next, 1000 * play.dataset.seconds); };
    const next = () => {
      if (played.value === played.max) return playing(false);
      played.stepUp();
      take(played);
      wait();
    };
    play?.addEventListener("click", () => {
      if ("playing" in box.dataset) return playing(false);
      const first = !begun || played.value === played.max;
      playing(true);
      if (!first) return next();
      played.value = played.min;
      take(played);
      wait();
    });
    played?.addEventListener("pointerdown", () => playing(false));

    // What can be dragged moves its sliders.
    for (const { name, x, y, scale, dx, dy } of needs.handles) {
      const clamp = (input, value) => {
        const { min, max, step } = form.elements[input];
        const stepped = Math.round((value - min) / step) * step + +min;
        return +Math.min(max, Math.max(min, stepped)).toFixed(6);
      };
      const under = (event) => {
        const at = new DOMPoint(event.x, event.y).matrixTransform(svg.getScreenCTM().inverse());
        return [(at.x - dx) / scale, (dy - at.y) / scale];
      };
      for (const mark of svg.querySelectorAll(`[data-handle="${name}"]`)) {
        let grip;  // from where it was taken to its own place
        mark.addEventListener("pointerdown", (event) => {
          if (event.button || event.ctrlKey) return;
          const at = under(event);
          grip = [x, y].map((input, i) => settings[input] - at[i]);
          mark.setPointerCapture(event.pointerId);
        });
        mark.addEventListener("pointermove", (event) => {
          if (!mark.hasPointerCapture(event.pointerId)) return;
          const at = under(event);
          [x, y].forEach((input, i) => input && set(input, clamp(input, at[i] + grip[i])));
          redraw();
        });
      }
    }

    // Cells: point at one, walk with the arrow keys, switch.
    const grid = needs.grid;
    if (grid) {
      const area = box.querySelector(".walk"), live = box.querySelector(".spoken");
      area.tabIndex = 0;
      const go = (row, column) => {
        settings[grid.row] = row;
        settings[grid.column] = column;
        draw();
        live.textContent = fill(grid.says, numbers);
      };
      const turn = () => {
        const at = settings[grid.row] * grid.columns + settings[grid.column];
        if (!grid.toggles || numbers.fixed?.[at]) return;
        settings[grid.toggles] = settings[grid.toggles].map((on, i) => (i === at ? !on : on));
        go(settings[grid.row], settings[grid.column]);
      };
      const under = (event) => event.target.closest?.("[data-cell]")?.dataset.cell.split(",").map(Number);
      svg.addEventListener("pointerover", (event) => {
        const cell = event.pointerType === "mouse" && under(event);
        if (cell) go(...cell);
      });
      svg.addEventListener("click", (event) => {
        const cell = under(event);
        if (!cell) return;
        go(...cell);
        turn();
      });
      area.addEventListener("keydown", (event) => {
        const row = Math.max(0, settings[grid.row]), column = Math.max(0, settings[grid.column]);
        const to = {
          ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
          ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
          Home: [row, 0], End: [row, grid.columns - 1],
        }[event.key];
        if (to) go(Math.min(grid.rows - 1, Math.max(0, to[0])), Math.min(grid.columns - 1, Math.max(0, to[1])));
        else if (event.key === "Enter" || event.key === " ") turn();
        else return;
        event.preventDefault();
      });
    }

    draw();
    box.dataset.live = "";
    if (play?.matches("[data-once]") && !matchMedia("(prefers-reduced-motion: reduce)").matches)
      document.querySelector(".predict")?.addEventListener("click", () => begun || play.click());
  };

  const start = () => {
    const near = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting || "live" in target.dataset) continue;
        near.unobserve(target);
        enhance(target);
      }
    }, { rootMargin: "600px" });
    document.querySelectorAll(".interactive:not([data-live])").forEach((box) => near.observe(box));
  };
  window.attnbookFigures = { compute, lists, fill };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else setTimeout(start);
})();
