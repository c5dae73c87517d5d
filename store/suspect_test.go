package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest/needs"
)

// tick is how often the machines of a simulation are judged.
const tick = 10 * time.Second

// machine is a worker of a simulation.
type machine struct {
	store.Suspicion
	id          string
	bad         bool   // every build fails there, at once
	attempts    string // as in its row
	free, rests time.Time
	ends        *store.EndedBuild
	ended       int // builds while it was suspect
}

// fleet simulates machines that take builds of one class whenever they may.
type fleet struct {
	*testing.T
	*rand.Rand
	now      time.Time
	machines []*machine
	ended    []store.EndedBuild // newest first
	badBuild string             // the branch of which every build fails
	labelled bool
	sources  int
	innocent []string // machines that were suspect though they are well
}

func newFleet(t *testing.T, seed uint64, n int, badMachine, badBranch, labelled bool) *fleet {
	t.Helper()
	f := &fleet{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(0, 0), labelled: labelled}
	for i := range n {
		f.machines = append(f.machines, &machine{id: fmt.Sprint("m", i)})
	}
	if badMachine {
		f.machines[f.IntN(n)].bad = true
	}
	if badBranch {
		f.badBuild = "x"
	}
	return f
}

var ios = store.Class{ID: store.IOSClass, Platform: store.IOS}

// run lets time pass.
func (f *fleet) run(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); f.now = f.now.Add(tick) {
		for _, m := range f.machines {
			if m.ends != nil && !m.free.After(f.now) {
				f.end(m)
			}
			if m.ends == nil && !m.rests.After(f.now) {
				f.begin(m)
			}
		}
		f.judge()
	}
}

func (f *fleet) begin(m *machine) {
	branch := []string{"main", "x", "y"}[f.IntN(3)]
	if f.IntN(4) > 0 || f.sources == 0 {
		f.sources++
	}
	b := &store.EndedBuild{Build: int64(len(f.ended)), Worker: m.id, Class: ios.ID, Source: branch + fmt.Sprint(f.sources)}
	if b.Completed = !m.bad && branch != f.badBuild; f.labelled {
		b.App, b.Branch = "shop", branch
	}
	took := tick
	if !m.bad {
		took *= time.Duration(1 + f.IntN(12))
	}
	m.ends, m.free = b, f.now.Add(took)
}

func (f *fleet) end(m *machine) {
	b, letter := m.ends, "b"
	if m.ends = nil; b.Completed {
		letter = "."
	}
	b.At = f.now
	f.ended = slices.Insert(f.ended, 0, *b)
	m.attempts = letter + m.attempts
	if m.Suspect && !m.Served {
		m.ended++
	}
	if rest := m.Ended(store.Result{Success: b.Completed}, m.rests.After(f.now)); rest > 0 {
		m.rests = f.now.Add(rest)
	}
}

// judge does what CheckSuspects does.
func (f *fleet) judge() {
	t := store.Trial{Able: []store.FleetGroup{{N: len(f.machines)}}, Known: []store.Class{ios}, Waiting: []store.Class{ios}, Ended: f.ended[:min(len(f.ended), 300)]}
	for _, m := range f.machines {
		if m.Suspect || strings.HasPrefix(m.attempts, "bbbbb") {
			a := store.Accused{ID: m.id, Suspicion: m.Suspicion}
			if m.Suspect {
				a.Classes = []store.Class{ios}
			}
			t.Accused = append(t.Accused, a)
		}
	}
	resting := 0
	for _, v := range t.JudgeSuspects() {
		i := slices.IndexFunc(f.machines, func(m *machine) bool { return m.id == v.ID })
		m := f.machines[i]
		if !m.Suspect {
			m.Suspicion, m.rests = store.Suspicion{Suspect: true, Rests: 1}, f.now.Add(v.Rest)
			require.GreaterOrEqual(f.T, len(v.Failed), store.SuspectAfter)
			if !m.bad {
				f.innocent = append(f.innocent, m.id)
			}
		}
		if m.Served = v.Served; !m.Served {
			resting++
		}
	}
	require.LessOrEqual(f.T, resting, len(f.machines)/2, "at most half rest")
}

func TestSuspects(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 6} {
		for _, badMachine := range []bool{false, true} {
			for _, badBranch := range []bool{false, true} {
				for _, labelled := range []bool{false, true} {
					t.Run(fmt.Sprintf("%d machines, bad machine %v, bad branch %v, labels %v", n, badMachine, badBranch, labelled), func(t *testing.T) {
						t.Parallel()
						for seed := range needs.Repeat(3, 300) {
							f := newFleet(t, uint64(seed), n, badMachine, badBranch, labelled)
							f.run(2 * time.Hour)
							if labelled || !badBranch {
								require.Empty(t, f.innocent)
							}
							completed := 0
							for _, b := range f.ended {
								if b.Completed {
									completed++
								}
							}
							if !badMachine || n > 1 {
								require.NotZero(t, completed)
							}
							for _, m := range f.machines {
								if m.bad && n > 1 {
									require.True(t, m.Suspect && !m.Served)
									require.Less(t, m.ended, 11, "one trial for each rest")
									m.bad = false // it is repaired
									f.badBuild = ""
								}
							}
							if badMachine && n > 1 {
								f.run(time.Hour)
								for _, m := range f.machines {
									require.False(t, m.Suspect, "two trials were completed")
								}
							}
						}
					})
				}
			}
		}
	}
}

// A worker fails five builds of five sources, another one completes the same application and branch.
func TestWhatMakesAWorkerSuspect(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	build := func(worker string, completed bool, source, branch string, ago int) store.EndedBuild {
		return store.EndedBuild{Build: int64(ago), Worker: worker, Class: ios.ID, Completed: completed, At: now.Add(-time.Duration(ago) * time.Second), Source: source, App: "shop", Branch: branch}
	}
	type builds = []store.EndedBuild
	for name, c := range map[string]struct {
		edit func(b builds) builds
		why  string
	}{
		"it is": {func(b builds) builds { return b }, "all 5 failures of 5 s ran here; other workers completed 1 of 1 builds of the same kind"},
		"others failed something else": {func(b builds) builds {
			return append(builds{build("well", false, "z", "other", 0)}, b...)
		}, "5 of 6 failures of 5 s ran here; other workers completed 1 of 2 builds of the same kind"},
		"too few failures": {func(b builds) builds { return b[1:] }, ""},
		"it completed one": {func(b builds) builds { b[3].Completed = true; return b }, ""},
		"another branch":   {func(b builds) builds { b[0].Branch = "other"; return b }, ""},
		"another app":      {func(b builds) builds { b[0].App = "other"; return b }, ""},
		"another class":    {func(b builds) builds { b[0].Class = store.AndroidClass; return b }, ""},
		"completed before": {func(b builds) builds { b[0].At = now.Add(-time.Hour); return append(b[1:], b[0]) }, ""},
		"one source": {func(b builds) builds {
			for i := range b {
				b[i].Source = "a"
			}
			return b
		}, ""},
		"two sources": {func(b builds) builds {
			for i := range b {
				b[i].Source = fmt.Sprint(i % 2)
			}
			return b
		}, "all 5 failures of 5 s ran here; other workers completed 1 of 1 builds of the same kind"},
		"one failed on both": {func(b builds) builds { return append(builds{build("well", false, "s3", "main", 0)}, b...) }, ""},
		"no labels, two completed": {func(b builds) builds {
			b = append(builds{b[0]}, b...)
			for i := range b {
				b[i].App, b[i].Branch = "", ""
			}
			return b
		}, ""},
		"no labels, three completed": {func(b builds) builds {
			b = append(builds{b[0], b[0]}, b...)
			for i := range b {
				b[i].App, b[i].Branch = "", ""
			}
			return b
		}, "all 5 failures of 5 s ran here; other workers completed 3 of 3 builds of the same kind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := builds{build("well", true, "w", "main", 0)}
			for i := 1; i <= 5; i++ {
				b = append(b, build("sick", false, fmt.Sprint("s", i), "main", i))
			}
			trial := store.Trial{Able: []store.FleetGroup{{N: 2}}, Accused: []store.Accused{{ID: "sick"}}, Known: []store.Class{ios}, Ended: c.edit(b)}
			verdicts := trial.JudgeSuspects()
			if c.why == "" {
				require.Empty(t, verdicts)
				return
			}
			require.Equal(t, []store.Verdict{{ID: "sick", Why: c.why, Rest: time.Minute, Failed: []int64{1, 2, 3, 4, 5}, Classes: []int32{ios.ID}}}, verdicts)
		})
	}
}

// A suspect is served as before while nobody else can take a class, and those that are suspect
// already rest before others are.
func TestAtMostHalfOfAClassRest(t *testing.T) {
	t.Parallel()
	gpu := store.Class{ID: 7, Platform: store.IOS, Require: store.StoredRequire("gpu")}
	with := store.Labels{"gpu": "1"}
	suspect := store.Accused{ID: "a", Labels: with, Suspicion: store.Suspicion{Suspect: true, Rests: 3}, Classes: []store.Class{ios}}
	judge := func(plain, able int, waiting ...store.Class) []store.Verdict {
		trial := store.Trial{Able: []store.FleetGroup{{N: plain}, {N: able, Labels: with}}, Accused: []store.Accused{suspect}, Waiting: waiting}
		return trial.JudgeSuspects()
	}
	for _, c := range []struct {
		plain, able int
		waiting     []store.Class
		served      bool
	}{{0, 1, nil, true}, {1, 1, nil, false}, {5, 1, []store.Class{gpu}, true}, {0, 2, []store.Class{gpu}, false}} {
		require.Equal(t, []store.Verdict{{ID: "a", Served: c.served, Rest: 4 * time.Minute, Classes: []int32{ios.ID}}}, judge(c.plain, c.able, c.waiting...))
	}
	b := suspect
	b.ID, b.Served = "b", true
	trial := store.Trial{Able: []store.FleetGroup{{N: 3}}, Accused: []store.Accused{b, suspect}}
	verdicts := trial.JudgeSuspects()
	require.Equal(t, []string{"a", "b"}, []string{verdicts[0].ID, verdicts[1].ID})
	require.Equal(t, []bool{false, true}, []bool{verdicts[0].Served, verdicts[1].Served})
}

func TestASuspectIsTried(t *testing.T) {
	t.Parallel()
	s, lost := store.Suspicion{Suspect: true, Rests: 1}, store.Result{}
	for _, minutes := range []time.Duration{2, 4, 8, 16, 30, 30} {
		require.Zero(t, s.Ended(lost, true), "handed out before")
		require.Zero(t, s.Ended(store.Result{Fault: store.FaultDisk}, false), "no trial of the build")
		require.Equal(t, minutes*time.Minute, s.Ended(lost, false))
	}
	won := store.Result{Success: true}
	require.Zero(t, s.Ended(won, true))
	require.Zero(t, s.Ended(won, false))
	require.Equal(t, 30*time.Minute, s.Ended(lost, false), "not two in a row")
	require.Zero(t, s.Ended(won, false))
	require.True(t, s.Suspect)
	require.Zero(t, s.Ended(won, false))
	require.Equal(t, store.Suspicion{}, s)
	s = store.Suspicion{Suspect: true, Served: true, Rests: 1}
	require.Zero(t, s.Ended(lost, false), "there is nobody else")
}
