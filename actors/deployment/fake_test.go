package deployment_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"takt/actors/deployment"
	"takt/actors/deployment/forge"
)

// behaviour is what happens to a repository while it is copied.
type behaviour uint8

const (
	succeeds behaviour = iota
	fails
	breaks // with an error that is no *forge.Error: a defect
	panics
	hangs // whatever its context says
	waits // until its context ends
	exits // runtime.Goexit
	loses // what was pushed is not there
)

// fakeForge copies nothing and does as it is told, for tests of who reports what.
type fakeForge struct {
	mu      sync.Mutex
	repos   []forge.Repo            // of the organisation "from"
	orgs    map[string][]forge.Repo // of others
	acts    map[string]behaviour
	copies  map[string]int
	release chan struct{} // ends what hangs
	gate    chan struct{} // if set, copying begins when it is closed
	now, at int           // copies under way, and the most that were
}

func newFake(n int) *fakeForge {
	f := &fakeForge{orgs: map[string][]forge.Repo{}, acts: map[string]behaviour{}, copies: map[string]int{}, release: make(chan struct{})}
	f.repos = repos("r", n)
	return f
}

func repos(prefix string, n int) (list []forge.Repo) {
	for i := range n {
		name := fmt.Sprintf("%s-%04d", prefix, i)
		list = append(list, forge.Repo{
			ID: int64(i + 1), Name: name, CloneURL: name, Visibility: "private",
			Description: "one of many repositories, this one called " + name, DefaultBranch: "main",
		})
	}
	return list
}

func (f *fakeForge) act(name string, b behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acts[name] = b
}

// under returns how many copies are under way.
func (f *fakeForge) under() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Login implements deployment.Forge.
func (f *fakeForge) Login(string) deployment.Account { return fakeAccount{f} }

type fakeAccount struct{ f *fakeForge }

func (a fakeAccount) Repos(_ context.Context, org string) ([]forge.Repo, error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if org == "from" {
		return a.f.repos, nil
	}
	return a.f.orgs[org], nil
}

func (a fakeAccount) Find(context.Context, forge.CreateRequest) (forge.Target, bool, error) {
	return forge.Target{}, false, nil
}

func (a fakeAccount) Create(_ context.Context, w forge.CreateRequest) (forge.Target, error) {
	return forge.Target{ID: 1, URL: w.Name, Made: true, Owned: true}, nil
}

func (a fakeAccount) Copy(ctx context.Context, from, _ string) (forge.Copied, error) {
	f := a.f
	f.mu.Lock()
	f.copies[from]++
	f.now++
	f.at = max(f.at, f.now)
	act, gate := f.acts[from], f.gate
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now--
		f.mu.Unlock()
	}()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return forge.Copied{}, context.Cause(ctx)
		}
	}
	return f.perform(ctx, act)
}

func (f *fakeForge) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.copies[name]
}

func (a fakeAccount) Refs(context.Context, string) (forge.Refs, error) { return forge.Refs{}, nil }

func (a fakeAccount) Configure(context.Context, string, string, forge.Settings) error { return nil }

func (a fakeAccount) Seed([]time.Duration) {}

// perform plays one behaviour.
func (f *fakeForge) perform(ctx context.Context, act behaviour) (forge.Copied, error) {
	switch act {
	case succeeds:
	case fails:
		return forge.Copied{}, &forge.Error{Message: "the forge says no"}
	case breaks:
		return forge.Copied{}, errors.New("a defect")
	case panics:
		panic("a defect")
	case hangs:
		<-f.release
		return forge.Copied{}, nil
	case waits:
		<-ctx.Done()
		return forge.Copied{}, context.Cause(ctx)
	case exits:
		runtime.Goexit()
	case loses:
		return forge.Copied{Refs: forge.Refs{"refs/heads/main": "1"}}, nil
	}
	return forge.Copied{}, nil
}
