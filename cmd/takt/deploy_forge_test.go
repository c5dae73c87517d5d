package main

import (
	"net/http"
	"strings"
	"sync"
)

// pushGate lets pushes into so many repositories through; others wait.
type pushGate struct {
	mu    sync.Mutex
	let   map[string]bool
	most  int
	moved chan struct{} // closed when most grows
}

func newPushGate() *pushGate { return &pushGate{let: map[string]bool{}, moved: make(chan struct{})} }

func (g *pushGate) open(most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = most
	close(g.moved)
	g.moved = make(chan struct{})
}

func (g *pushGate) enter(repo string) (ok bool, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.let[repo] && len(g.let) < g.most {
		g.let[repo] = true
	}
	return g.let[repo], g.moved
}

func (g *pushGate) intercept(_ http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
		return false
	}
	for {
		ok, moved := g.enter(r.URL.Path)
		if ok {
			return false
		}
		select {
		case <-moved:
		case <-r.Context().Done():
			return true
		}
	}
}
