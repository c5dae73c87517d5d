package forge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment/forge"
	"takt/http/githubtest"
)

// wish is a repository of the organisation "to".
func wish(name string) forge.CreateRequest {
	return forge.CreateRequest{Org: "to", Name: name, Visibility: "private", Marker: "m"}
}

// createAll has several accounts of one credential create n repositories each.
func (b *fixture) createAll(accounts, n int) {
	b.t.Helper()
	var wg sync.WaitGroup
	failed := make(chan error, accounts*n)
	for i := range accounts {
		account := b.github.Login(githubtest.Token)
		wg.Go(func() {
			for j := range n {
				if _, err := account.Create(b.t.Context(), wish(fmt.Sprintf("r%d-%d", i, j))); err != nil {
					failed <- err
				}
			}
		})
	}
	wg.Wait()
	require.Empty(b.t, failed)
	require.Len(b.t, b.forge.Names("to"), accounts*n)
}

func TestAccountsOfACredentialShareItsBudget(t *testing.T) {
	t.Parallel()
	const n, window = 10, 500 * time.Millisecond
	b := setupWith(t, func(c *githubtest.Config) { c.CreatesPerWindow, c.Window = n, window },
		func(c *forge.Config) {
			c.Creates, c.SecondaryWait = []forge.Limit{{N: n, Per: window}}, 100*time.Millisecond
		})
	b.createAll(3, 12)
	times, refused := b.forge.Creates()
	require.Zero(t, refused, "the limit is never reached")
	for i := range len(times) - n {
		require.GreaterOrEqual(t, times[i+n].Sub(times[i]), window, "creation %d", i)
	}
}

// Two of three creations are refused: none fails, although a call is tried once.
func TestStormOfSecondaryLimitsPaces(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(http.ResponseWriter){
		"that say when": func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		},
		"that do not": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message":"You have exceeded a secondary rate limit."}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *forge.Config) { c.SecondaryWait, c.Tries = 10*time.Millisecond, 1 })
			var creates atomic.Int64
			b.forge.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPost || creates.Add(1)%3 == 0 {
					return false
				}
				refuse(w)
				return true
			})
			b.createAll(3, 1)
			require.GreaterOrEqual(t, creates.Load(), int64(9))
		})
	}
}

func TestPrimaryLimitIsWaitedFor(t *testing.T) {
	t.Parallel()
	var waited atomic.Int64
	b := setupWith(t, func(c *githubtest.Config) { c.CallsPerWindow, c.PrimaryWindow = 5, 2*time.Second },
		func(c *forge.Config) { c.Tries = 1 })
	ctx := forge.WithNotice(t.Context(), func(until time.Time) {
		if left := time.Until(until); left > 0 && left < 3*time.Second { // else it is the time that a call may take
			waited.Add(1)
		}
	})
	for range 8 {
		must(b.account.Repos(ctx, "from"))(t)
	}
	require.Positive(t, waited.Load())
}

// Every second call is lost: no answer, an answer of a server in trouble, or an
// answer that is lost after the work was done.
func TestBrokenCallsAreTriedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.forge.Fill(t, "r", 3, b.template)
	var calls, gits atomic.Int64
	b.forge.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, ".git/") {
			if gits.Add(1)%7 != 3 {
				return false
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		switch calls.Add(1) % 6 {
		case 0:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusBadGateway)
			return true
		case 4:
			b.forge.Answer(discardReply{}, r)
			panic(http.ErrAbortHandler)
		}
		return false
	})
	for i := range 3 {
		name := fmt.Sprintf("r-%03d", i)
		target := must(b.account.Create(t.Context(), wish(name)))(t)
		require.True(t, target.Owned, "an answer that was lost makes no stranger of it")
		must(b.account.Copy(t.Context(), b.url("from", name), target.URL))(t)
		require.Equal(t, githubtest.RefsOf(t, b.forge.Dir("from", name)), githubtest.RefsOf(t, b.forge.Dir("to", name)))
	}
	require.Len(t, b.forge.Names("to"), 3)
}

// A controller that was killed may have left the forge with a push to finish,
// which meets that of its successor.
func TestPushGoesOnBesideAnEarlierOne(t *testing.T) {
	t.Parallel()
	for name, interfere := range map[string]func(b *fixture, r *http.Request, push []byte) (undo func()){
		"that has written the refs meanwhile": func(b *fixture, r *http.Request, push []byte) func() {
			earlier := r.Clone(b.t.Context())
			earlier.Body = io.NopCloser(bytes.NewReader(push))
			b.forge.Answer(discardReply{}, earlier)
			return func() {}
		},
		"that holds the lock of a ref": func(b *fixture, _ *http.Request, _ []byte) func() {
			lock := filepath.Join(b.forge.Dir("to", "r-000"), "refs/tags/vr-000.lock")
			b.noError(os.WriteFile(lock, nil, 0o600))
			return func() { b.noError(os.Remove(lock)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.forge.Fill(t, "r", 1, b.template)
			target := b.target("r-000")
			pushes := 0
			b.forge.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
					return false
				}
				push, err := io.ReadAll(r.Body)
				b.noError(err)
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(push)), int64(len(push))
				if pushes++; pushes == 1 {
					defer interfere(b, r, push)()
				}
				b.forge.Answer(w, r)
				return true
			})
			must(b.account.Copy(t.Context(), b.url("from", "r-000"), target.URL))(t)
			require.Equal(t, githubtest.RefsOf(t, b.forge.Dir("from", "r-000")), githubtest.RefsOf(t, b.forge.Dir("to", "r-000")))
		})
	}
}

// discardReply does the work and loses the answer.
type discardReply struct{}

func (discardReply) Header() http.Header         { return http.Header{} }
func (discardReply) Write(p []byte) (int, error) { return len(p), nil }
func (discardReply) WriteHeader(int)             {}

func TestFinalAnswersAreNotTriedAgain(t *testing.T) {
	t.Parallel()
	for status, words := range map[int]string{
		401: "the credential is not valid", 403: "does not allow it", 404: "no such thing", 422: "refuses it", 410: "answers 410",
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.forge.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"message":"no way"}`))
				return true
			})
			_, err := b.account.Repos(t.Context(), "from")
			var e *forge.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, status, e.Status)
			require.Contains(t, forge.Message(err), words)
			require.Contains(t, forge.Message(err), "no way")
			require.Equal(t, 1, b.forge.Count("GET /orgs"))
		})
	}
	b := setup(t, func(c *forge.Config) { c.Tries = 3 })
	b.forge.Intercept(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	_, err := b.account.Repos(t.Context(), "from")
	require.Contains(t, forge.Message(err), "the forge answers 500")
	require.Equal(t, 3, b.forge.Count("GET /orgs"))
	require.Equal(t, "Internal error", forge.Message(errors.New("x")))
}

// hold keeps git waiting for its server, and tells when it does.
func (b *fixture) hold() (held <-chan struct{}) {
	begun := make(chan struct{}, 100)
	b.forge.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, ".git/") {
			return false
		}
		begun <- struct{}{}
		<-r.Context().Done()
		return true
	})
	return begun
}

// processes counts those whose arguments or directory are about a path.
func processes(t *testing.T, path string) (n int) {
	t.Helper()
	dirs := must(filepath.Glob("/proc/[0-9]*"))(t)
	for _, dir := range dirs {
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		at, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if strings.Contains(string(args), path) || strings.HasPrefix(at, path) {
			n++
		}
	}
	return n
}

func TestEndOfTheContextKillsGitAndCleansTheDisk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.forge.Fill(t, "r", 1, b.template)
	held := b.hold()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := b.account.Copy(ctx, b.url("from", "r-000"), b.url("to", "r-000")); ended <- err }()
	<-held
	require.Positive(t, processes(t, b.work))
	begun := time.Now()
	stopped := errors.New("enough")
	cancel(stopped)
	require.ErrorIs(t, <-ended, stopped)
	require.Less(t, time.Since(begun), 10*time.Second)
	require.Zero(t, processes(t, b.work), "with all that it has started")
}

func TestGitHasATimeLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *forge.Config) { c.GitTimeout = 300 * time.Millisecond })
	b.forge.Fill(t, "r", 1, b.template)
	b.hold()
	_, err := b.account.Copy(t.Context(), b.url("from", "r-000"), b.url("to", "r-000"))
	require.Equal(t, "Cloning took longer than 300ms", forge.Message(err))
	require.Zero(t, processes(t, b.work))
}

func TestCredentialIsInNoErrorAndGoesNowhereElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.forge.Fill(t, "r", 1, b.template)
	const wrong = "ghs_AnotherTokenThatNobodyKnows"
	account := b.github.Login(wrong)
	_, err := account.Refs(t.Context(), b.url("from", "r-000"))
	require.ErrorContains(t, err, "Reading the branches and tags failed: the credential is not valid")
	require.NotContains(t, err.Error(), wrong)
	_, err = account.Repos(t.Context(), "from")
	require.ErrorContains(t, err, "the credential is not valid")
	require.NotContains(t, err.Error(), wrong)

	for _, elsewhere := range []string{"https://other.example/x.git", "http://127.0.0.1:1/x.git", "file:///etc", "ext::sh -c id", "http://user@" + strings.TrimPrefix(b.forge.URL, "http://") + "x.git", ""} {
		_, err := b.account.Copy(t.Context(), elsewhere, b.url("to", "x"))
		var e *forge.Error
		require.ErrorAs(t, err, &e, elsewhere)
	}
}

func TestMissingGitIsSaid(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *forge.Config) { c.Environ = []string{"PATH=/nowhere"} })
	_, err := b.account.Copy(t.Context(), b.url("from", "r"), b.url("to", "r"))
	require.Equal(t, "The git program is not installed where takt runs", forge.Message(err))
}
