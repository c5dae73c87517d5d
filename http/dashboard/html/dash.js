// Follows a page: parts of it that change arrive as server-sent events and are
// worked into what is there, so that focus, selection, scrolling and what was typed
// stay. Everything works without this file, too.
'use strict'

// localize shows times as those of this place. Their titles say them in UTC.
const two = (n) => String(n).padStart(2, '0')
function localize(root) {
  for (const e of root.querySelectorAll('time[datetime], [data-time]')) {
    const at = new Date(e.dateTime || e.dataset.time)
    const minute = `${two(at.getHours())}:${two(at.getMinutes())}`
    const second = `${minute}:${two(at.getSeconds())}`
    const day = `${at.getDate()} ${at.toLocaleString('en', { month: 'short' })}`
    const text = { hms: second, hm: minute, dhm: `${day} ${minute}` }[e.dataset.form]
    if (text) e.textContent = text
    else if (!e.title.includes(' · ')) e.title = `${day} ${second} · ${e.title}`
  }
}

// morph makes element a what b is, changing as little as it can. Children are told
// apart by their ids, else by their place.
function morph(a, b) {
  for (const { name } of [...a.attributes]) {
    // What a person has opened or typed is theirs.
    if (!b.hasAttribute(name) && !(name === 'open' && a.tagName === 'DETAILS')) a.removeAttribute(name)
  }
  for (const { name, value } of b.attributes) {
    if (a.getAttribute(name) !== value) a.setAttribute(name, value)
  }
  morphChildren(a, b)
}

function morphChildren(a, b) {
  const byId = new Map()
  for (const child of a.children) if (child.id) byId.set(child.id, child)
  const stay = new Set()
  for (const child of b.children) if (child.id) stay.add(child.id)
  let at = a.firstChild
  for (const want of [...b.childNodes]) {
    // What is gone makes way, so that what follows need not be moved.
    while (at && at.id && at.id !== want.id && !stay.has(at.id)) {
      const gone = at
      at = at.nextSibling
      gone.remove()
    }
    const known = want.id && byId.get(want.id)
    if (known && known !== at) a.insertBefore(known, at)
    const have = known || at
    if (have && !known && have.id && stay.has(have.id)) {
      a.insertBefore(want, have)
    } else if (have && have.nodeType === want.nodeType && have.nodeName === want.nodeName && (have.id || '') === (want.id || '')) {
      if (want.nodeType === Node.ELEMENT_NODE) morph(have, want)
      else if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue
      at = have.nextSibling
    } else if (have && !known) {
      at = have.nextSibling
      have.replaceWith(want)
    } else {
      a.insertBefore(want, at)
    }
  }
  while (at) {
    const gone = at
    at = at.nextSibling
    gone.remove()
  }
}

// busy reports whether somebody fills in a form here: it is left alone meanwhile.
function busy(part) {
  const focus = document.activeElement
  if (part.contains(focus) && focus.matches('input, select, textarea')) return true
  for (const option of part.querySelectorAll('option')) {
    if (option.defaultSelected && !option.selected) return true
  }
  for (const input of part.querySelectorAll('input:not([type=hidden])')) {
    if (input.type === 'checkbox' ? input.checked : input.value !== input.defaultValue) return true
  }
  return false
}

const atEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 24

// missed are the parts that came while somebody was busy in them.
const missed = new Map()

function swap({ id, html }) {
  const part = document.getElementById(id)
  if (!part) return
  if (busy(part)) return missed.set(id, html)
  missed.delete(id)
  const fresh = part.cloneNode(false)
  fresh.innerHTML = html
  localize(fresh)
  const follow = 'follow' in part.dataset && atEnd(part)
  morphChildren(part, fresh)
  if (follow) part.scrollTop = part.scrollHeight
  if (id === 'live-nav') signal()
}

// signal shows in the title and icon of the tab how many problems there are.
function signal() {
  const n = Number(document.querySelector('[data-problems]')?.dataset.problems)
  const icon = document.querySelector('link[rel=icon]')
  document.title = (n ? `(${n} problem${n > 1 ? 's' : ''}) ` : '') + document.title.replace(/^\(\d+ problems?\) /, '')
  const href = icon.getAttribute('href').replace(/icon(-bad)?\.svg/, n ? 'icon-bad.svg' : 'icon.svg')
  if (icon.getAttribute('href') !== href) icon.setAttribute('href', href)
}

// A log that goes on. seq is the last line that came, shown the last one that is here; they
// differ after more lines than a browser can hold came while somebody read further up.
const log = document.querySelector('.log[data-seq]')
const logNew = document.getElementById('log-new')
const most = 20000
let seq = Number(log?.dataset.seq)
let shown = seq
let unread = 0

const make = (name, className, html) => {
  const element = document.createElement(name)
  element.className = className
  element.innerHTML = html
  return element
}

function gap(after) {
  return make('p', 'gap', `<a href="${log.dataset.page}?after=${after}">Lines are missing here. Show them</a>`)
}

// append adds lines, which logTail.after lists. It moves nothing that somebody reads.
function append(items, last) {
  const follow = atEnd(log)
  const lines = items.filter((item) => typeof item === 'string').length
  if (!follow && unread + lines > most) {
    unread += lines
    seq = last
    return count()
  }
  log.querySelector('.empty')?.remove()
  let group = log.querySelector('[data-open]')
  const end = () => {
    group?.removeAttribute('data-open')
    group = null
  }
  const fresh = document.createDocumentFragment()
  if (shown !== seq) items.unshift({ gap: true })
  let number = 0
  let level = ''
  let time = ''
  let begin = false
  for (const item of items) {
    if (typeof item === 'number') number = item
    else if (typeof item === 'object') {
      if (item.gap) {
        end()
        fresh.append(gap(shown))
      }
      if (item.level) level = item.level === 'info' ? '' : ' ' + item.level
      if (item.time) time = item.time + ' '
      if (item.begin) begin = true
      if (item.end) end()
    } else {
      if (begin) end()
      const name = `aria-label="line ${number}">${number}`
      const address = number && !begin ? `<a class="n" href="${log.dataset.page}?line=${number}#L${number}" ${name}\t</a>` : `<span class="n">${number || ''}\t</span>`
      const line = make(begin ? 'summary' : 'div', 'l' + level, address + time + `<span class="m">${item}</span>`)
      if (number) line.id = 'L' + number++
      if (begin) {
        group = document.createElement('details')
        group.open = true
        group.dataset.open = ''
        fresh.append(group)
        begin = false
      }
      (group || fresh).append(line)
    }
  }
  localize(fresh)
  log.append(fresh)
  seq = shown = last
  if (follow) {
    trim()
    log.scrollTop = log.scrollHeight
  } else {
    unread += lines
    count()
  }
}

// trim removes lines far above the end.
function trim() {
  for (let over = log.querySelectorAll('.l').length - 2000; over > 0; over--) {
    const first = log.firstElementChild
    if (first.tagName === 'DETAILS' && first.children.length > 1) first.children[1].remove()
    else first.remove()
  }
}

function count() {
  if (!logNew) return
  logNew.hidden = !unread
  logNew.textContent = `↓ ${unread} new line${unread === 1 ? '' : 's'}`
}

if (logNew) {
  logNew.addEventListener('click', () => { log.scrollTop = log.scrollHeight })
  log.addEventListener('scroll', () => {
    if (!unread || !atEnd(log)) return
    unread = 0
    count()
  })
}

// A range of lines: #L5-L9 is marked, a click on a number begins one and a click with Shift
// ends it. The address works without this file, too.
const page = document.querySelector('.log.whole')

function markLines() {
  const [, from, to] = /^#L(\d+)(?:-L(\d+))?$/.exec(location.hash) || []
  if (!from) return
  for (const line of page.querySelectorAll('.hit')) line.classList.remove('hit')
  for (let n = Number(from); n <= Math.min(Number(to || from), Number(from) + 5000); n++) {
    const line = document.getElementById('L' + n)
    line?.classList.add('hit')
    if (n === Number(from)) {
      const group = line?.closest('details')
      if (group) group.open = true
      line?.scrollIntoView({ block: 'center' })
    }
  }
}

if (page) {
  let begin = Number(new URLSearchParams(location.search).get('line'))
  markLines()
  addEventListener('hashchange', markLines)
  page.addEventListener('click', (event) => {
    const link = event.target.closest('.n[href]')
    if (!link || event.ctrlKey || event.metaKey) return
    const n = Number(link.textContent)
    if (!event.shiftKey || !begin) {
      begin = n
      return
    }
    event.preventDefault()
    const [from, to] = [Math.min(begin, n), Math.max(begin, n)]
    history.replaceState(null, '', `${page.dataset.page}?line=${from}&to=${to}#L${from}-L${to}`)
    markLines()
  })
}

document.addEventListener('focusout', () => setTimeout(() => missed.forEach((html, id) => swap({ id, html }))))

const body = document.body.dataset
let stream = null
let state = 'Connecting'
let asof = Date.now() // when what the page shows was read
let heard = 0 // when the controller sent something
let lost = 0 // since when there is no connection
const grace = 3000 // a restart of the endpoint is no news
const silence = 10000 // a controller that sends nothing for so long stands still

// tell shows each second how old the page is, and whether its controller is gone.
function tell() {
  const now = Date.now()
  if (stream && now - heard > silence) {
    gone(heard)
    leave()
    follow()
  }
  const sign = document.getElementById('live-sign')
  const age = Math.max(0, Math.round((now - asof) / 1000))
  const ago = age < 2 ? 'just now' : age < 120 ? `${age} s ago` : age < 7200 ? `${Math.floor(age / 60)} min ago` : `${Math.floor(age / 3600)} h ago`
  if (sign && 'live' in body) sign.textContent = body.live === 'away' ? 'Waiting for data' : `${state} · updated ${ago}`
  const dead = lost > 0 && now - lost > grace
  document.body.classList.toggle('lost', dead)
  const banner = document.getElementById('lost')
  if (!dead) banner.textContent = ''
  else if (!banner.textContent) banner.textContent = 'Connection to takt lost. This page shows older data; it reconnects automatically.'
}

function gone(since) {
  state = 'Not live'
  if (!lost) lost = since
}

function follow() {
  if (stream || document.hidden || !('live' in body)) return
  const at = new URL(location.href)
  if (log) at.searchParams.set('since', seq)
  stream = new EventSource(at)
  heard = Date.now()
  stream.addEventListener('look', () => location.reload()) // of make dev
  stream.addEventListener('age', (event) => {
    state = 'Live'
    heard = Date.now()
    lost = 0
    if (event.data >= 0) asof = heard - event.data
    tell()
  })
  stream.addEventListener('part', (event) => {
    const part = JSON.parse(event.data)
    if (body.live === 'away' && (part.id !== 'live-stale' || !part.html.trim())) again()
    else swap(part)
  })
  stream.addEventListener('log', (event) => append(JSON.parse(event.data), Number(event.lastEventId)))
  stream.addEventListener('error', () => {
    gone(Date.now())
    // A browser gives up for good when it is refused; a controller that restarts
    // refuses for a moment only.
    if (stream && stream.readyState === EventSource.CLOSED) {
      leave()
      setTimeout(again, 3000)
    }
  })
}

// again fetches the page and follows it: after a refusal, whose reason may be that the
// session is over, and when a page that was away has parts to show.
async function again() {
  leave()
  const reply = await fetch(location.href).catch(() => null)
  if (reply?.redirected) return location.reload()
  if (reply?.ok && body.live === 'away') {
    const page = new DOMParser().parseFromString(await reply.text(), 'text/html')
    if (page.querySelector('.log')) return location.reload()
    document.getElementById('main').replaceWith(page.getElementById('main'))
    body.live = ''
    localize(document)
    toEnd()
  }
  follow()
}

function leave() {
  if (stream) stream.close()
  stream = null
}

// A page that nobody sees follows nothing.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) leave()
  else follow()
})
addEventListener('pagehide', () => {
  leave()
  lost = 0
})
addEventListener('pageshow', follow)

function toEnd() {
  for (const box of document.querySelectorAll('[data-follow]')) box.scrollTop = box.scrollHeight
}
toEnd()
localize(document)
follow()
tell()
setInterval(tell, 1000)

document.documentElement.classList.add('js')
document.addEventListener('click', async ({ target }) => {
  if (target.matches('.copy')) {
    await navigator.clipboard.writeText(target.dataset.copy)
    target.textContent = 'copied'
    setTimeout(() => { target.textContent = 'copy' }, 2000)
  } else if (target.matches('.all')) {
    for (const box of document.querySelectorAll('input[form=bulk]')) box.checked = !box.checked
  }
})

// Keys. Those with Ctrl, Alt or Meta are the browser's, and those typed into a field
// are text.
let went = 0
let searching = false
const keys = document.getElementById('keys')
// The field gets the focus when the key is let go, so that it doesn't get the key.
document.addEventListener('keyup', () => {
  if (searching) document.getElementById('search')?.focus()
  searching = false
})
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && event.target.id === 'search') event.target.blur()
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches('input, select, textarea')) return
  if (Date.now() - went < 1500) {
    went = 0
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)
    if (link) {
      event.preventDefault()
      link.click()
    }
    return
  }
  switch (event.key) {
    case 'g':
      went = Date.now()
      break
    case 'j':
    case 'k': {
      const rows = [...document.querySelectorAll('tbody tr:has(a)')]
      const at = rows.findIndex((row) => row.contains(document.activeElement))
      rows[event.key === 'j' ? at + 1 : Math.max(at - 1, 0)]?.querySelector('a').focus()
      break
    }
    case '/':
      event.preventDefault() // some browsers search the page with it
      searching = true
      break
    case '?':
      if (keys && !keys.open) keys.showModal()
      break
  }
})
