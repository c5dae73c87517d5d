package postgres

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store"
)

func pendingBuilds(platform store.Platform, positions ...int64) (all []lockedBuild) {
	for _, p := range positions {
		all = append(all, lockedBuild{Job: store.Job{BuildID: fmt.Sprint(platform, p), Platform: platform, ClassID: store.PlainClass(platform)}, seq: p, position: p})
	}
	return all
}

// claimsOf returns empty claims for workers of these platforms.
func claimsOf(platforms ...[]store.Platform) (all []*claim) {
	for _, p := range platforms {
		all = append(all, &claim{classSet: setOf(new(classes).all(), &store.WorkerSession{Platforms: p})})
	}
	return all
}

// Each case is one poll of a worker that holds build r, handed out with counter 200 and not
// acknowledged, while one build is pending.
func TestDecide(t *testing.T) {
	t.Parallel()
	const again, next, nothing, open = "r", "ios1", "", "not served"
	for name, c := range map[string]struct {
		poll func(p *store.Poll)
		row  func(w *row)
		held func(h *held)
		want string
		out  store.PollOutcome
	}{
		"a free worker gets the next":       {want: next},
		"one without a free slot gets none": {row: func(w *row) { w.Held = 3 }, want: nothing},
		"a drained one gets none":           {row: func(w *row) { w.Drained = true }, want: nothing},
		"a drained one gets again what it may not have heard of": {
			row: func(w *row) { w.Drained, w.Used = true, 150 }, poll: func(p *store.Poll) { p.Shown = 150 }, want: again,
		},
		"one of no platform gets none":                {row: func(w *row) { w.Platforms = []store.Platform{"amiga"} }, want: nothing},
		"one of the other platform gets none":         {row: func(w *row) { w.Platforms = []store.Platform{store.Android} }, want: nothing},
		"one of which too few were locked":            {row: func(w *row) { w.Platforms = []store.Platform{store.IOS} }, want: open},
		"one that could not be locked":                {held: func(h *held) { clear(h.workers) }, want: open},
		"a token as old as the hand-out":              {poll: func(p *store.Poll) { p.Shown = 200 }, row: func(w *row) { w.Used = 200 }, want: next},
		"a token older than the hand-out":             {poll: func(p *store.Poll) { p.Shown = 199 }, row: func(w *row) { w.Used = 199 }, want: again},
		"no token":                                    {poll: func(p *store.Poll) { p.Shown = 0 }, want: again},
		"no token, listed":                            {poll: func(p *store.Poll) { p.Shown, p.Reconcile, p.Active = 0, true, []string{"r"} }, want: next},
		"not listed":                                  {poll: func(p *store.Poll) { p.Reconcile = true }, want: again},
		"one slot":                                    {row: func(w *row) { w.Slots, w.Held = 1, 1 }, want: again},
		"repeats that were not read":                  {row: func(w *row) { w.Slots, w.Held = 1, 1 }, held: func(h *held) { clear(h.asked) }, want: open},
		"a token that was superseded":                 {row: func(w *row) { w.Used = 400 }, out: store.PollInvalidToken},
		"a parked poll whose token was superseded":    {row: func(w *row) { w.Used = 400 }, poll: func(p *store.Poll) { p.Parked = true }, out: store.PollSuperseded},
		"a parked poll that counts":                   {poll: func(p *store.Poll) { p.Parked, p.Handed = true, 200 }, want: next},
		"a parked poll, and a hand-out since":         {poll: func(p *store.Poll) { p.Parked, p.Handed = true, 199 }, out: store.PollSuperseded},
		"a parked poll without token, and a hand-out": {poll: func(p *store.Poll) { p.Parked, p.Handed, p.Shown = true, 199, 0 }, out: store.PollSuperseded},
		"another process":                             {poll: func(p *store.Poll) { p.Instance = "b" }, row: func(w *row) { w.instance, w.Used = "a", 400 }, out: store.PollDuplicateWorker},
		"a token of another worker":                   {poll: func(p *store.Poll) { p.WorkerID = "v" }, out: store.PollInvalidToken},
		"a token of the worker that is named":         {poll: func(p *store.Poll) { p.WorkerID = "w" }, want: next},
		"the same process":                            {poll: func(p *store.Poll) { p.Instance = "a" }, row: func(w *row) { w.instance = "a" }, want: next},
		"a process that names itself not":             {row: func(w *row) { w.instance = "a" }, want: next},
		"a process where none did":                    {poll: func(p *store.Poll) { p.Instance = "a" }, want: next},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &row{WorkerSession: store.WorkerSession{Number: 7, ID: "w", Slots: 3, Held: 1, Used: 300, Handed: 200}}
			p := &turn{Poll: store.Poll{Worker: 7, Shown: 300, Used: 300}}
			h := &held{workers: map[uint32]*row{7: w}, asked: map[string]bool{"w": true}, classes: new(classes).all()}
			h.repeats = []lockedBuild{{Job: store.Job{BuildID: "x"}, worker: "v", handed: 900}, {Job: store.Job{BuildID: again}, worker: "w", handed: 200}}
			h.claims = claimsOf(nil, []store.Platform{store.Android})
			h.claims[0].builds, h.claims[1].whole = pendingBuilds(store.IOS, 1), true
			if c.row != nil {
				c.row(w)
			}
			if c.poll != nil {
				c.poll(&p.Poll)
			}
			if c.held != nil {
				c.held(h)
			}
			d := decide([]*turn{p}, h)
			r := d.results[0]
			if c.want == open {
				require.Nil(t, r)
				return
			}
			require.NotNil(t, r)
			require.Equal(t, c.out, r.Outcome)
			got := ""
			if r.Jobs.First() != nil {
				got = r.Jobs.First().BuildID
			}
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == again, r.Redelivered)
			require.Len(t, d.written, len(d.handOuts))
			require.Equal(t, got != next, slices.Contains(d.unused, "ios"), "what was locked and is not used")
		})
	}
}

// What decide does with any polls and any rows: the promises, said in another way.
func TestDecideKeepsThePromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 12)
		yes := func(what string) bool { return rapid.Bool().Draw(t, what) }
		h := &held{workers: map[uint32]*row{}, asked: map[string]bool{}, classes: new(classes).all()}
		h.classes = append(h.classes, store.Class{ID: 20, Platform: store.IOS, Require: store.StoredRequire("gpu")})
		h.claims = claimsOf([]store.Platform{store.IOS}, []store.Platform{store.Android}, nil)
		if yes("a claim for labels") {
			h.claims = append(h.claims, &claim{classSet: setOf(h.classes, &store.WorkerSession{Labels: store.Labels{"gpu": ""}})})
		}
		h.claims[0].builds = pendingBuilds(store.IOS, slices.Repeat([]int64{3}, n.Draw(t, "ios"))...)
		h.claims[1].builds = pendingBuilds(store.Android, slices.Repeat([]int64{4}, n.Draw(t, "android"))...)
		h.claims[2].builds = pendingBuilds(store.IOS, slices.Repeat([]int64{5}, n.Draw(t, "all"))...)
		order, left, seq := map[string][]string{}, map[string]int{}, int64(0)
		for k, c := range h.claims {
			c.whole = yes("whole")
			for i := range c.builds {
				seq++
				b := &c.builds[i]
				if k == 2 && yes("for android") {
					b.Platform, b.ClassID = store.Android, store.AndroidClass
				}
				b.seq, b.BuildID, b.Attempt = seq, fmt.Sprint("b", seq), rapid.IntRange(0, 2).Draw(t, "attempt")
				b.worker = rapid.SampledFrom([]string{"", "w0", "w1", "w2"}).Draw(t, "last worker")
				order[c.key] = append(order[c.key], b.BuildID)
			}
		}
		claimFor := func(w *row) *claim { return h.claimOf(setOf(h.classes, &w.WorkerSession)) }
		waits := func(w *row) bool { c := claimFor(w); return c == nil || len(c.builds) == 0 && !c.whole }
		var turns []*turn
		before := map[string]row{}
		for i := range n.Draw(t, "workers") {
			w := &row{offline: yes("offline"), trial: rapid.IntRange(0, 3).Draw(t, "trial") == 0, instance: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "holder")}
			w.Number, w.ID, w.Drained = uint32(i+1), fmt.Sprint("w", i), rapid.IntRange(0, 3).Draw(t, "drained") == 0
			w.Slots, w.Used, w.Handed = rapid.IntRange(1, 5).Draw(t, "slots"), rapid.Uint64Range(1, 9).Draw(t, "used"), rapid.Uint64Range(1, 9).Draw(t, "handed")
			w.Held = rapid.IntRange(0, w.Slots).Draw(t, "held")
			w.Platforms = rapid.SampledFrom([][]store.Platform{nil, {store.IOS}, {store.Android}, {store.Android, store.IOS}, {"amiga"}}).Draw(t, "takes")
			w.Labels = rapid.SampledFrom([]store.Labels{nil, nil, {"gpu": ""}, {"gpu": "1", "pool": "a"}}).Draw(t, "labels")
			for b := range rapid.IntRange(0, w.Held).Draw(t, "not acknowledged") {
				h.repeats = append(h.repeats, lockedBuild{Job: store.Job{BuildID: fmt.Sprint("r", i, b)}, worker: w.ID, handed: rapid.Uint64Range(1, w.Handed).Draw(t, "hand-out")})
			}
			p := store.Poll{Worker: w.Number, Shown: rapid.Uint64Range(0, 10).Draw(t, "shown"), Instance: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "process")}
			p.Used, p.Parked, p.Handed, p.Reconcile = max(p.Shown, rapid.Uint64Range(0, 12).Draw(t, "known")), yes("parked"), w.Handed, yes("reconcile")
			p.Max, p.New, p.Spare = rapid.IntRange(0, 5).Draw(t, "max"), rapid.IntRange(0, 5).Draw(t, "new"), rapid.SampledFrom([][]int32{nil, {store.IOSClass}, {store.AndroidClass, store.IOSClass, 20}}).Draw(t, "spare")
			if p.Reconcile {
				p.Active = rapid.SliceOf(rapid.SampledFrom([]string{fmt.Sprint("r", i, 0), fmt.Sprint("r", i, 1)})).Draw(t, "listed")
			}
			turns, before[w.ID] = append(turns, &turn{Poll: p}), *w
			if yes("locked") {
				h.workers[w.Number], h.asked[w.ID] = w, yes("asked")
			}
		}
		slices.SortStableFunc(h.repeats, func(a, b lockedBuild) int { return int(a.handed) - int(b.handed) })

		d := decide(turns, h)

		given, got := map[string]bool{}, map[string][]handOut{}
		for _, o := range d.handOuts {
			was := before[o.to.ID]
			require.False(t, given[o.BuildID], "P2: one build, two workers")
			given[o.BuildID], got[o.to.ID] = true, append(got[o.to.ID], o)
			require.False(t, was.Drained)
			c := claimFor(&was)
			left[c.key]++
			if o.worker == o.to.ID {
				for _, other := range d.handOuts {
					require.True(t, other.from != c || other.to == o.to || other.worker == o.to.ID, "another of them could go to the worker that had this one")
				}
			}
		}
		undecided := map[int32]bool{}
		for i, p := range turns {
			if d.results[i] == nil {
				for _, id := range p.takes.ids {
					undecided[id] = true
				}
			}
		}
		for i, p := range turns {
			w := h.workers[p.Worker]
			if w == nil {
				continue
			}
			was, all, last := before[w.ID], got[w.ID], uint64(0)
			require.Equal(t, was.Held+len(all), w.Held)
			require.LessOrEqual(t, w.Held, was.Slots)
			for k, o := range all {
				require.GreaterOrEqual(t, o.number, max(was.Handed, w.Used, last)+handOutStep, "each has its own number, which tells from all before")
				last = o.number
				require.Equal(t, k, o.nr)
				if k > 0 {
					require.Less(t, k, p.New)
					require.False(t, w.trial, "one at a time for a quarantined worker")
					require.Contains(t, p.Spare, o.ClassID)
					require.False(t, undecided[o.ClassID], "a poll that could take it is not decided")
				}
			}
			c := claimFor(&was)
			for j, other := range turns {
				o := h.workers[other.Worker]
				if len(all) < 2 || o == nil || claimFor(o) != c || !o.Free() || d.results[j] == nil || d.results[j].Outcome != store.PollServed || d.results[j].Redelivered {
					continue
				}
				require.NotEmpty(t, got[o.ID], "each gets its first before one gets a second")
				if len(other.Spare) == 3 && !o.trial && len(got[o.ID]) < other.New {
					require.LessOrEqual(t, len(all), len(got[o.ID])+1, "in turns")
				}
			}
			if len(all) > 0 && len(c.builds) > 0 && slices.Contains(p.Spare, c.builds[0].ClassID) && !undecided[c.builds[0].ClassID] && !w.trial {
				require.True(t, len(all) >= p.New || !w.Free(), "it may have more, and there is more: %d of %d", len(all), d.results[i].Session.Held)
			}
		}
		for _, c := range h.claims {
			for _, id := range order[c.key][:left[c.key]] {
				require.True(t, given[id], "P5: the first that the workers can take")
			}
		}
		written := 0
		for i, p := range turns {
			w, r := h.workers[p.Worker], d.results[i]
			if w == nil {
				require.Nil(t, r)
				continue
			}
			was := before[w.ID]
			if r == nil {
				require.True(t, p.mayRepeat(&was.WorkerSession) && !h.asked[w.ID] || w.Free() && waits(&was))
				continue
			}
			rival := p.Instance != "" && was.instance != "" && p.Instance != was.instance
			superseded := p.Shown > 0 && p.Shown < was.Used
			require.Equal(t, rival, r.Outcome == store.PollDuplicateWorker)
			require.Equal(t, superseded && !rival && p.Parked, r.Outcome == store.PollSuperseded)
			require.Equal(t, superseded && !rival && !p.Parked, r.Outcome == store.PollInvalidToken)
			if r.Outcome != store.PollServed {
				require.Empty(t, r.Jobs, "P2: a superseded token or another process gets nothing")
				continue
			}
			require.Equal(t, max(was.Used, p.Used), r.Session.Used)
			require.Equal(t, w.WorkerSession, r.Session)
			var due []string
			for _, b := range h.repeats {
				heard := p.Shown > 0 && b.handed <= p.Shown && !p.Reconcile && was.Slots > 1
				listed := p.Reconcile && slices.Contains(p.Active, b.BuildID)
				if b.worker == w.ID && !heard && !listed {
					due = append(due, b.BuildID)
				}
			}
			var jobs []string
			for _, j := range r.Jobs {
				jobs = append(jobs, j.BuildID)
			}
			switch {
			case len(due) > 0:
				require.True(t, r.Redelivered)
				require.Equal(t, due[:min(len(due), max(p.Max, 1))], jobs, "the earliest hand-outs that it may not have heard of")
				require.Equal(t, was.Held, r.Session.Held)
				require.Empty(t, got[w.ID])
			case len(jobs) > 0:
				require.False(t, r.Redelivered)
				require.Len(t, got[w.ID], len(jobs))
				for k, o := range got[w.ID] {
					require.Equal(t, o.BuildID, jobs[k])
				}
				require.Equal(t, r.Session.Handed, r.Handed, "the number of the last one")
			default:
				require.Empty(t, got[w.ID])
				require.True(t, !was.Free() || len(setOf(h.classes, &was.WorkerSession).ids) == 0 || !waits(&was), "a free worker gets nothing only if nothing is pending")
			}
			if was.offline || len(r.Jobs) > 0 && !r.Redelivered {
				require.Contains(t, d.written, w)
				written++
			}
		}
		require.Len(t, d.written, written, "what a poll does not change is not written")
		for _, c := range h.claims {
			require.Len(t, c.builds, len(order[c.key])-left[c.key])
			for _, b := range c.builds {
				require.Contains(t, d.unused, string(b.Platform))
			}
		}
	})
}
