'use strict';
(() => {
  // Records are written by strangers: their text only ever becomes text nodes, never markup, attributes or addresses.
  const byId = (id) => document.getElementById(id);
  const element = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children.flat());
    return node;
  };
  // What would be invisible, or would turn the order of what stands beside it, is written as its code.
  const UNSEEN = /([\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}])/u;
  const seen = (text, ends = false) => text.split(UNSEEN).filter((part) => part !== '').map((part) => {
    if (part === '\n') return ends ? [element('span', { class: 'end' }, '⏎'), '\n'] : '\n';
    if (part === '\t' || !UNSEEN.test(part)) return part;
    return element('span', { class: 'escape' }, `\\u{${part.codePointAt(0).toString(16)}}`);
  }).flat();
  const number = (value) => Number(value).toLocaleString('en');
  const bytes = (value) => value < 1e3 ? `${value} B` : value < 1e6 ? `${(value / 1e3).toFixed(1)} kB`
    : value < 1e9 ? `${(value / 1e6).toFixed(1)} MB` : `${(value / 1e9).toFixed(2)} GB`;
  const counted = (count, one) => `${number(count)} ${one}${count === 1 ? '' : 's'}`;
  const list = (pairs) => element('dl', {}, pairs.map(([term, ...value]) =>
    [element('dt', {}, term), element('dd', {}, ...value)]).flat());
  const place = (dataset, line) => [element('bdi', {}, ...seen(dataset)), ` line ${number(line)}`];

  class Problem extends Error {
    constructor(document) {
      super(`${document.title}: ${document.detail}${document.remedy ? ` — ${document.remedy}` : ''}`);
      this.status = document.status;
    }
  }

  // In this page's memory alone: browsers send a cookie to every port of the host, and for every page that asks.
  let admission = '';
  // Every question to the worker goes through here.
  const request = async (path, signal) => {
    const headers = admission === '' ? {} : { authorization: `Bearer ${admission}` };
    const answer = await fetch(path, { signal, headers, cache: 'no-store', credentials: 'omit' });
    if (answer.ok) return answer;
    if (answer.status === 401) byId('locked').hidden = false;
    throw new Problem(await answer.json().catch(() => ({ title: path, detail: `status ${answer.status}` })));
  };
  const streamPath = (stream) => `/v1/streams/${encodeURIComponent(stream)}`;
  const worker = {
    live: true,
    first: 0,
    last: Number.MAX_SAFE_INTEGER,
    sample: async (stream, position, signal) =>
      (await request(`${streamPath(stream)}/samples/${position}`, signal)).json(),
    picture: async (shown, index, signal) => {
      const path = `${streamPath(shown.stream)}/samples/${shown.position}/images/${index}.png`;
      return URL.createObjectURL(await (await request(path, signal)).blob());
    },
    async find(stream, query, signal, each) {
      const answer = await request(`${streamPath(stream)}/find?${new URLSearchParams(query)}`, signal);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        for (const line of lines) each(JSON.parse(line));
      }
    },
  };
  // A file made by `feedmill show --html`.
  const saved = (data) => ({
    live: false,
    datasets: [...new Set(data.samples.flatMap((one) => [one.sample, ...one.rejected]).filter(Boolean).map((one) => one.dataset))],
    first: data.samples[0].position,
    last: data.samples[data.samples.length - 1].position,
    stream: data.samples[0].stream,
    at: (position) => data.samples.find((sample) => sample.position === position),
    async sample(stream, position) {
      const sample = this.at(position);
      if (sample) return sample;
      throw new Error(`this file has positions ${this.first} to ${this.last}; make another with feedmill show --html`);
    },
    picture: async (shown, index) => shown.pictures[index],
    async find(stream, query, signal, each) {
      for (const shown of data.samples) {
        const record = shown.sample ?? {};
        const hit = query.id === undefined
          ? [record, ...shown.rejected].some((one) => one.dataset === query.dataset && String(one.line) === query.line)
          : record.id === query.id;
        if (hit) each({ found: { dataset: query.dataset ?? record.dataset, line: query.line ?? record.line, positions: [shown.position] } });
      }
      each({ done: true, scanned: data.samples.length, of: data.samples.length });
    },
  });
  const block = byId('data');
  const source = block ? saved(JSON.parse(block.textContent)) : worker;

  const now = { stream: source.stream ?? '', position: source.first, shown: null, loading: null, searching: null, addresses: [] };
  const say = (error) => {
    if (error?.name !== 'AbortError') byId('problem').replaceChildren(...seen(String(error?.message ?? error)));
  };

  // ---- a sample

  const STATUS = {
    ok: 'The assigned record stands here.',
    substituted: 'Another record stands here, because the assigned one cannot be used.',
    zero_loss: 'A row without loss stands here, because the assigned record cannot be used.',
    fails: 'A batch with this position is refused, because its record cannot be used.',
  };
  const rejected = (shown) => shown.rejected.length === 0 ? [] : [
    element('h3', {}, shown.status === 'substituted' ? 'Why another record stands here' : 'Why the record cannot be used'),
    ...shown.rejected.map((record, index) => element('div', { class: 'rejected' },
      element('strong', {}, index === 0 ? 'Assigned: ' : `Candidate ${index}: `), ...place(record.dataset, record.line),
      list([
        ['class', element('code', {}, record.class)],
        ...(record.key === null ? [] : [['object', element('bdi', {}, ...seen(record.key))]]),
        ['because', ...seen(record.detail)],
        ['what to do', record.remedy],
      ]))),
  ];
  const figure = (image, index, figures) => {
    const picture = element('img', {
      width: image.resized_width, height: image.resized_height, alt: `picture ${index + 1}, put together from its patches`,
    });
    figures.push(picture);
    const [, down, across] = image.grid_thw;
    return element('figure', { id: `picture-${index + 1}` }, picture, element('figcaption', {},
      element('strong', {}, `${index + 1}: ${image.resized_width}×${image.resized_height} pixels from ${across}×${down} patches, ${counted(image.tokens, 'token')}`),
      element('br'), `original: ${image.format}, ${image.width}×${image.height} pixels, ${bytes(image.bytes)}`,
      element('br'), ...(image.key === null ? ['inside the record'] : [element('bdi', {}, ...seen(image.key))])));
  };
  const message = (one) => element('div', { class: 'message' }, element('h3', {}, one.role),
    element('div', { class: 'text', dir: 'auto' }, one.parts.map((part) => part.text === undefined
      ? element('span', { class: 'image' }, `picture ${part.image + 1}`) : seen(part.text)).flat()));
  const TOKENS_AT_ONCE = 20000;
  const token = (one) => {
    const learnt = one.supervised ? ' learnt' : '';
    if (one.count !== undefined) {
      const of = one.image === null ? '' : `picture ${one.image + 1}: `;
      return element('span', { class: `token image${learnt}`, 'data-id': one.id, title: `id ${one.id}, ${one.count} times` },
        `${of}${counted(one.count, 'image token')}`);
    }
    const part = one.text === null;
    return element('span', { class: `token${learnt}${part ? ' part' : ''}`, 'data-id': one.id,
      title: `id ${one.id}${part ? ', goes on with the character before it' : ''}${one.supervised ? ', supervised' : ''}` },
    ...(part ? [] : seen(one.text, true)));
  };
  const tokens = (all) => {
    const box = element('div', { class: 'tokens', id: 'tokens', dir: 'ltr' });
    const more = element('button', { type: 'button' });
    let done = 0;
    const add = () => {
      box.append(...all.slice(done, done + TOKENS_AT_ONCE).map(token));
      done = Math.min(all.length, done + TOKENS_AT_ONCE);
      more.textContent = `Show more tokens: ${number(all.length - done)} are left`;
      more.hidden = done === all.length;
    };
    more.addEventListener('click', add);
    add();
    const ids = element('input', { type: 'checkbox', id: 'ids' });
    ids.addEventListener('change', () => box.classList.toggle('ids', ids.checked));
    const legend = element('div', { class: 'legend' }, element('span', { class: 'learnt' }, 'supervised'),
      element('span', { class: 'image' }, 'image tokens'), element('label', {}, ids, ' show ids'));
    return [legend, box, more];
  };
  const draw = (shown) => {
    const figures = [];
    const parts = [
      element('p', { id: 'status' }, element('strong', {}, STATUS[shown.status] ?? shown.status),
        ` Position ${number(shown.position)} is sample ${number(shown.sample_index)} of epoch ${number(shown.epoch)}.`),
      ...rejected(shown),
    ];
    const sample = shown.sample;
    if (sample) {
      const share = Math.round(100 * sample.supervised_tokens / Math.max(1, sample.tokens));
      parts.push(
        element('h3', {}, 'Record'),
        list([
          ['record', ...place(sample.dataset, sample.line)],
          ...(sample.id === null ? [] : [['id', element('bdi', { id: 'record-id' }, ...seen(sample.id))]]),
          ['tokens', `${number(sample.tokens)}, ${number(sample.supervised_tokens)} of them supervised (${share} %)`],
          ['hash', element('code', {}, sample.hash)],
          ['plan', element('code', {}, shown.plan)],
        ]),
        element('h3', {}, `Pictures as the model gets them: ${sample.images.length}`),
        ...(sample.shrunk ? [element('p', {}, 'Made smaller so that the sample fits maxTokens.')] : []),
        element('div', { class: 'pictures' }, sample.images.map((image, index) => figure(image, index, figures))),
        element('h3', {}, 'Tokens'), ...tokens(sample.token_list),
        element('h3', {}, 'Messages'), ...sample.messages.map(message),
      );
    }
    byId('shown').replaceChildren(...parts);
    return figures;
  };
  const show = async (position) => {
    now.loading?.abort();
    const loading = now.loading = new AbortController();
    const ready = `${now.stream}/${position}`;
    now.position = position;
    byId('position').value = position;
    byId('previous').disabled = position <= source.first;
    byId('next').disabled = position >= source.last;
    byId('problem').replaceChildren();
    byId('shown').setAttribute('aria-busy', 'true');
    delete document.body.dataset.shown;
    try {
      history.replaceState(null, '', `#${encodeURIComponent(now.stream)}/${position}`);
      const shown = await source.sample(now.stream, position, loading.signal);
      if (loading.signal.aborted) return;
      now.shown = shown;
      now.addresses.splice(0).forEach((address) => URL.revokeObjectURL(address));
      const figures = draw(shown);
      await Promise.all(figures.map(async (figure, index) => {
        const address = await source.picture(shown, index, loading.signal);
        if (source.live) now.addresses.push(address);
        if (loading.signal.aborted) return;
        figure.src = address;
        await figure.decode();
      }));
    } catch (error) {
      if (loading.signal.aborted) return;
      if (now.shown?.position !== position) byId('shown').replaceChildren();
      say(error);
    } finally {
      if (now.loading === loading) {
        byId('shown').removeAttribute('aria-busy');
        document.body.dataset.shown = ready;
      }
    }
  };
  const step = (by) => {
    const position = now.position + by;
    if (position >= source.first && position <= source.last) show(position);
  };

  // ---- search

  const MAX_LISTED = 200;
  const found = (one) => {
    const buttons = one.positions.map((position) => {
      const button = element('button', { type: 'button' }, number(position));
      button.addEventListener('click', () => show(position));
      return button;
    });
    const where = buttons.length === 0 ? ['not in this epoch'] : [buttons.length === 1 ? 'position ' : 'positions ', ...buttons];
    return element('p', {}, ...place(one.dataset, one.line), ': ', ...where);
  };
  const find = async (query) => {
    now.searching?.abort();
    const searching = now.searching = new AbortController();
    byId('problem').replaceChildren();
    byId('found').replaceChildren();
    byId('progress').hidden = byId('stop').hidden = false;
    byId('bar').removeAttribute('value');
    byId('scanned').textContent = 'looking';
    delete document.body.dataset.found;
    let hits = 0;
    const first = () => byId('found').querySelector('button');
    try {
      await source.find(now.stream, query, searching.signal, (line) => {
        if (searching.signal.aborted) return;
        if (line.problem) throw new Problem(line.problem);
        if (line.found && ++hits <= MAX_LISTED) byId('found').append(found(line.found));
        if (line.scanned !== undefined) {
          byId('bar').max = line.of;
          byId('bar').value = line.scanned;
          byId('scanned').textContent = `${number(line.scanned)} of ${number(line.of)} records looked at, ${number(hits)} found`;
        }
        if (line.done && hits === 0) byId('found').replaceChildren(element('p', {}, line.why ? `There is no such record: ${line.why}.` : 'There is no such record.'));
        if (line.more) byId('found').append(element('p', {}, 'There may be more; these are the first.'));
      });
      first()?.focus();
    } catch (error) {
      say(error);
    } finally {
      if (now.searching === searching) {
        byId('progress').hidden = byId('stop').hidden = true;
        document.body.dataset.found = hits;
      }
    }
  };

  // ---- the worker

  const budgets = (text) => {
    const all = {};
    for (const [, what, name, value] of text.matchAll(/^feedmill_worker_(budget(?:_used|_waiting)?)_bytes\{budget="([a-z]+)"\} (\S+)$/gm)) {
      (all[name] ??= {})[what] = Number(value);
    }
    return all;
  };
  const drawWorker = (status, limits) => {
    byId('name').textContent = status.worker;
    const streams = Object.entries(status.streams);
    byId('summary').textContent = `${status.state}, ${counted(status.cores, 'thread')}, ${counted(streams.length, 'stream')}, ${counted(status.samples, 'sample')} served`;
    byId('worker').replaceChildren(
      list([
        ['state', status.state], ['version', status.version],
        ['queue', `${counted(status.work_ahead, 'sample')} asked for and not made yet, ${number(status.ready)} finished and kept`],
        ['served', `${counted(status.samples, 'sample')} in ${number(status.batches)} ${status.batches === 1 ? 'batch' : 'batches'}, ${bytes(status.bytes_out)}`],
        ['fetched', bytes(status.bytes_in)], ['ranks that report', number(status.reports.length)],
        ...streams.map(([name, stream]) => [`stream ${name}`,
          `${number(stream.samples_per_epoch)} samples in an epoch, plan `, element('code', {}, stream.plan)]),
      ]),
      element('div', { class: 'scroll' }, element('table', {},
        element('tr', {}, ['budget', 'in use', 'of', 'waited for'].map((head) => element('th', { scope: 'col' }, head))),
        Object.entries(limits).map(([name, budget]) => element('tr', {}, element('th', { scope: 'row' }, name),
          [budget.budget_used, budget.budget, budget.budget_waiting].map((value) => element('td', {}, bytes(value ?? 0))))))));
  };
  const drawBad = ({ records, met_but_not_listed: unlisted }) => {
    if (records.length === 0) return byId('bad').replaceChildren(element('p', {}, 'None has been met.'));
    const row = (record) => {
      const button = element('button', { type: 'button' }, 'Find');
      button.addEventListener('click', () => {
        if (record.stream !== undefined && record.stream !== now.stream) choose(record.stream);
        find({ dataset: record.dataset, line: String(record.line), epoch: String(now.shown?.epoch ?? 0) });
      });
      return element('tr', {}, element('td', {}, ...place(record.dataset, record.line)),
        element('td', {}, element('code', {}, record.class)),
        element('td', {}, ...(record.key ? [element('bdi', {}, ...seen(record.key)), element('br')] : []), ...seen(record.detail)),
        element('td', {}, record.remedy), element('td', {}, number(record.times)), element('td', {}, button));
    };
    byId('bad').replaceChildren(
      element('p', {}, `${counted(records.length, 'record')}${records.length > MAX_LISTED ? `, the first ${MAX_LISTED} shown` : ''}${unlisted ? `; ${number(unlisted)} more were met and not listed` : ''}`),
      element('div', { class: 'scroll' }, element('table', {},
        element('tr', {}, ['record', 'class', 'what is wrong', 'what to do', 'times', 'position'].map((head) => element('th', { scope: 'col' }, head))),
        records.slice(0, MAX_LISTED).map(row))));
  };
  let kept = '';
  const look = async () => {
    const status = await (await request('/v1/status')).json();
    drawWorker(status, budgets(await (await request('/metrics')).text()));
    if (status.state === 'starting') {
      const doing = await request('/readyz').catch((error) => error);
      if (doing instanceof Error) byId('summary').textContent = doing.message;
      return false;
    }
    if (status.state === 'ready' && byId('locked').hidden) {
      const text = await (await request('/v1/bad')).text();
      // Drawn again when it differs, so as not to take the focus away from what somebody is using.
      if (text !== kept) drawBad(JSON.parse(kept = text));
    }
    return true;
  };
  const LOOK_EVERY = 3000;
  let next;
  const watch = async () => {
    try {
      if (document.visibilityState === 'visible' && await look() && !now.stream && byId('locked').hidden) await begin();
    } catch (error) {
      byId('summary').textContent = `${error.status === 401 ? 'locked' : 'no answer'}: ${error.message}`;
    }
    clearTimeout(next);
    next = setTimeout(watch, LOOK_EVERY);
  };

  // ---- what a person does

  let plans = {};
  const choose = (stream) => {
    now.stream = stream;
    byId('stream').value = stream;
    const datasets = plans[stream]?.datasets ?? [];
    byId('kind').replaceChildren(element('option', { value: '' }, 'record with the id'),
      ...datasets.map((name, index) => element('option', { value: `${index + 1}` }, 'line of ', name)));
  };
  const begin = async () => {
    plans = (await (await request('/v1/plan')).json()).streams;
    const names = Object.keys(plans);
    byId('stream').replaceChildren(...names.map((name) => element('option', { value: name }, name)));
    byId('stream-label').hidden = names.length < 2;
    const [, stream, position] = /^#([^/]+)\/(\d{1,16})$/.exec(location.hash) ?? [];
    let wanted = names[0];
    try { wanted = decodeURIComponent(stream ?? ''); } catch { /* not a name */ }
    choose(names.includes(wanted) ? wanted : names[0]);
    await show(Math.min(Number(position ?? 0), source.last));
  };
  byId('locked').addEventListener('submit', (event) => {
    event.preventDefault();
    admission = byId('token').value.trim();
    byId('token').value = '';
    byId('locked').hidden = true;
    watch();
  });
  byId('stream').addEventListener('change', (event) => { choose(event.target.value); show(0); });
  byId('jump').addEventListener('submit', (event) => { event.preventDefault(); show(Number(byId('position').value)); });
  byId('previous').addEventListener('click', () => step(-1));
  byId('next').addEventListener('click', () => step(1));
  byId('stop').addEventListener('click', () => now.searching?.abort());
  byId('find').addEventListener('submit', (event) => {
    event.preventDefault();
    const wanted = byId('wanted').value;
    const dataset = plans[now.stream]?.datasets[Number(byId('kind').value) - 1];
    const what = dataset === undefined ? { id: wanted } : { dataset, line: wanted.trim() };
    find({ ...what, epoch: String(now.shown?.epoch ?? 0) });
  });
  document.addEventListener('keydown', (event) => {
    const typing = event.target.closest?.('input:not([type=checkbox]), select, textarea');
    if (typing || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    if (event.key === 'ArrowLeft') step(-1);
    if (event.key === 'ArrowRight') step(1);
  });

  if (source.live) {
    byId('live').hidden = false;
    watch();
  } else {
    byId('summary').textContent = `positions ${number(source.first)} to ${number(source.last)} of stream ${source.stream}, saved by feedmill show`;
    byId('stream-label').hidden = true;
    byId('position').min = source.first;
    byId('position').max = source.last;
    plans = { [source.stream]: { datasets: source.datasets } };
    choose(source.stream);
    const [, , position] = /^#([^/]+)\/(\d{1,16})$/.exec(location.hash) ?? [];
    show(position !== undefined && source.at(Number(position)) ? Number(position) : source.first);
  }
})();
