package takttest

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/githubtest"
	"takt/store/storetest/needs"
)

// NewForge is a forge with n repositories, and the settings of a controller for
// it.
func NewForge(t *testing.T, n int) (*githubtest.Forge, []string) {
	t.Helper()
	needs.Git(t)
	template, err := githubtest.Template(t.TempDir())
	require.NoError(t, err)
	f := githubtest.Start(t)
	f.Fill(t, "r", n, template)
	return f, []string{"TAKT_GITHUB_URL=" + f.URL, "TAKT_DEPLOY_PER_HOUR=1000000"}
}

// PushGate lets pushes into so many repositories through; others wait.
type PushGate struct {
	mu    sync.Mutex
	let   map[string]bool
	most  int
	moved chan struct{} // closed when most grows
}

// NewPushGate lets none through yet.
func NewPushGate() *PushGate { return &PushGate{let: map[string]bool{}, moved: make(chan struct{})} }

// Open lets pushes into up to most repositories through.
func (g *PushGate) Open(most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = most
	close(g.moved)
	g.moved = make(chan struct{})
}

func (g *PushGate) enter(repo string) (ok bool, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.let[repo] && len(g.let) < g.most {
		g.let[repo] = true
	}
	return g.let[repo], g.moved
}

// Intercept is for githubtest.Forge.
func (g *PushGate) Intercept(_ http.ResponseWriter, r *http.Request) bool {
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
