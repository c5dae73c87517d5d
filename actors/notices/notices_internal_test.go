package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

type fixture struct {
	*Notices
	t    *testing.T
	log  strings.Builder
	jobs *worker
}

func setup(t *testing.T) *fixture {
	t.Helper()
	db := postgres.NewNotices(storetest.New(t).DB)
	b := &fixture{Notices: New(db, seal.NewRing(seal.Key{1}), []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, ""), t: t}
	b.jobs = &worker{n: b.Notices, log: zerolog.New(&b.log)}
	return b
}

// subscribe makes a subscription; with a token one of GitHub.
func (b *fixture) subscribe(url, token string) store.Subscription {
	b.t.Helper()
	s, _, err := b.Make(b.t.Context(), store.Subscription{URL: url, NoticeFilter: store.NoticeFilter{Labels: map[string]string{}}}, token)
	require.NoError(b.t, err)
	return s
}

// work makes an attempt to send a notice of a subscription's version.
func (b *fixture) work(s store.Subscription, attempt int, body string) error {
	return b.jobs.Work(b.t.Context(), &river.Job[store.NoticeJob]{
		JobRow: &rivertype.JobRow{Attempt: attempt, MaxAttempts: 11},
		Args:   store.NoticeJob{Subscription: s.ID, Version: s.Version, ID: "msg_1", Body: json.RawMessage(body)},
	})
}

// secrets returns a subscription as it is now, and its secrets.
func (b *fixture) secrets(id string) (store.Subscription, store.NoticeSecrets) {
	b.t.Helper()
	s, err := b.Receiver(b.t.Context(), id)
	require.NoError(b.t, err)
	secrets, err := b.open(s)
	require.NoError(b.t, err)
	return s, secrets
}

func to(url string) func(*store.Subscription) { return func(s *store.Subscription) { s.URL = url } }

// receive counts what a receiver gets, and answers as told.
func receive(t *testing.T, answer http.HandlerFunc) (at string, got *atomic.Int64) {
	t.Helper()
	got = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got.Add(1); answer(w, r) }))
	t.Cleanup(s.Close)
	return s.URL, got
}

func TestSecretsBelongToTheURL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const at = "https://a.example/path?q=1"
	for token, needed := range map[string]string{"": "new_secret", "ghp_first": "github_token"} {
		s := b.subscribe(at, token)
		before, _ := b.secrets(s.ID)
		for _, other := range []string{
			"http://a.example/path?q=1", "https://b.example/path?q=1", "https://a.example:444/path?q=1", "https://a.example/elsewhere?q=1",
			"https://a.example/path?q=2", "https://a.example/path", "https://A.example/path?q=1", "https://a.example/path/../evil",
		} {
			_, secret, err := b.Change(t.Context(), s.ID, "", false, func(s *store.Subscription) { s.URL, s.Disabled = other, "x" })
			require.Equal(t, store.SecretsNeeded, store.CodeOf(err), other)
			require.ErrorContains(t, err, needed)
			require.Empty(t, secret)
		}
		_, _, err := b.Change(t.Context(), s.ID, map[bool]string{true: "ghp_wrong"}[token == ""], token != "", to("https://b.example"))
		require.Equal(t, store.InvalidArgument, store.CodeOf(err), "the secret of the other kind")
		now, _ := b.secrets(s.ID)
		require.Equal(t, before, now, "nothing was changed")
		_, _, err = b.Change(t.Context(), s.ID, "", false, func(s *store.Subscription) { s.URL, s.Disabled = at, "an operator disabled it" })
		require.NoError(t, err, "the URL stays")
		now, _ = b.secrets(s.ID)
		require.Equal(t, before.Secrets, now.Secrets)
	}
	s := b.subscribe(at, "")
	_, err := b.Rotate(t.Context(), s.ID) // so that it has a secret before
	require.NoError(t, err)
	s, secret, err := b.Change(t.Context(), s.ID, "", true, to("https://b.example/"))
	require.NoError(t, err)
	_, secrets := b.secrets(s.ID)
	require.Equal(t, secret, secretText(secrets.Current))
	require.Empty(t, secrets.Old, "no signature of an earlier secret goes to the new URL")
	require.Equal(t, 1, s.Version)

	s = b.subscribe(at, "ghp_first")
	_, _, err = b.Change(t.Context(), s.ID, "ghp_second", false, to("http://b.example/"))
	require.ErrorContains(t, err, "https")
	s, secret, err = b.Change(t.Context(), s.ID, "ghp_second", false, to("https://b.example/"))
	require.NoError(t, err)
	require.Empty(t, secret)
	_, secrets = b.secrets(s.ID)
	require.Equal(t, store.NoticeSecrets{Current: []byte("ghp_second")}, secrets)
}

// A notice that was taken before its subscription got another URL, that is being sent, or that
// has failed goes to the URL before or nowhere, whichever controller sends it.
func TestANoticeNeverGoesToANewURL(t *testing.T) {
	t.Parallel()
	for _, github := range []bool{false, true} {
		b := setup(t)
		other := &fixture{Notices: New(b.Store, b.keys, nil, ""), t: t}
		other.jobs = &worker{n: other.Notices, log: zerolog.Nop()}
		sending, answer := make(chan struct{}), make(chan int)
		old, before := receive(t, func(w http.ResponseWriter, _ *http.Request) { sending <- struct{}{}; w.WriteHeader(<-answer) })
		evil, after := receive(t, func(http.ResponseWriter, *http.Request) {})
		body := `{}`
		token := ""
		if github {
			token, body = "ghp_first", commitBody(t, b, "o/r@"+strings.Repeat("a", 40))
		}
		s := b.subscribe(old, token)
		done := make(chan error)
		go func() { done <- b.work(s, 1, body) }()
		<-sending
		_, _, err := b.Change(t.Context(), s.ID, map[bool]string{true: "ghp_second"}[github], !github, to(evil))
		require.NoError(t, err)
		answer <- http.StatusGone
		require.Error(t, <-done)
		now, _ := b.secrets(s.ID)
		require.Empty(t, now.Disabled, "it is the URL before that is gone")
		for attempt := range 3 { // it is tried again, was taken before the change, or was redriven
			for _, controller := range []*fixture{b, other} {
				var cancel *rivertype.JobCancelError
				require.ErrorAs(t, controller.work(s, attempt+1, body), &cancel)
				require.ErrorContains(t, cancel, "URL was changed")
			}
		}
		require.EqualValues(t, 1, before.Load())
		require.Zero(t, after.Load())
		require.NoError(t, b.work(now, 1, body))
		require.NotZero(t, after.Load(), "what happens after the change goes to the new URL")
	}
}

// commitBody makes a build of a commit and returns the body of its notice.
func commitBody(t *testing.T, b *fixture, commit string) string {
	t.Helper()
	b.Store = &oneCommit{b.Store}
	return fmt.Sprintf(`{"data": {"platform": "ios", "labels": {"github": %q}}}`, commit)
}

// oneCommit is a store where every commit has the same build.
type oneCommit struct{ Store }

func (*oneCommit) Commit(context.Context, string, store.Platform) (store.Build, error) {
	return store.Build{ID: "b", State: store.Completed}, nil
}

func TestATokenIsSentToGitHubOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, plain := range []string{"http://api.github.com", "http://10.1.2.3", "http://localhost"} {
		_, _, err := b.Make(t.Context(), store.Subscription{URL: plain}, "ghp_x")
		require.Equal(t, store.InvalidArgument, store.CodeOf(err), plain)
		s := b.subscribe("https://api.github.com", "ghp_x")
		_, err = b.Update(t.Context(), s.ID, func(s *store.Subscription) error { s.URL = plain; return nil }) // as before this rule
		require.NoError(t, err)
		s.Version++
		require.ErrorContains(t, b.work(s, 1, commitBody(t, b, "o/r@"+strings.Repeat("a", 40))), "https URLs only")
		b.subscribe(plain, "")
	}
	at, got := receive(t, func(http.ResponseWriter, *http.Request) {})
	s := b.subscribe(at, "ghp_x")
	for _, commit := range []string{"../..@" + strings.Repeat("a", 40), "o/..@" + strings.Repeat("a", 40), "o/r?x@" + strings.Repeat("a", 40), "o/r@main"} {
		require.ErrorContains(t, b.work(s, 1, commitBody(t, b, commit)), "not OWNER/REPO@SHA")
	}
	require.Zero(t, got.Load())
	require.NoError(t, b.work(s, 1, commitBody(t, b, "o/r@"+strings.Repeat("a", 40))))
	require.EqualValues(t, 1, got.Load())
}

// What is kept and logged of a failure has neither the path nor the query of the URL.
func TestErrorsHaveNoPathOfAURL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at, _ := receive(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("way") {
		case "redirect":
			w.Header().Set("Location", "https://x/"+r.RequestURI+"\x7f%")
			w.WriteHeader(http.StatusFound)
		case "hangup":
			panic(http.ErrAbortHandler)
		case "refuse":
			w.WriteHeader(http.StatusTeapot)
		}
	})
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, url := range []string{
		at + "/PATHSECRET?way=redirect&t=QUERYSECRET", at + "/PATHSECRET?way=hangup&t=QUERYSECRET", at + "/PATHSECRET?way=refuse&t=QUERYSECRET",
		closed.URL + "/PATHSECRET?t=QUERYSECRET", strings.Replace(at, "http:", "https:", 1) + "/PATHSECRET?t=QUERYSECRET", "http://10.9.9.9/PATHSECRET?t=QUERYSECRET",
		"http://no.such.host.invalid/PATHSECRET?t=QUERYSECRET", "http://127.0.0.1:99999/PATHSECRET?t=QUERYSECRET",
	} {
		for _, token := range []string{"", "ghp_x"} {
			if token != "" && !confidential(url) {
				continue
			}
			err := b.work(b.subscribe(url, token), 11, commitBody(t, b, "o/r@"+strings.Repeat("a", 40)))
			require.Error(t, err, url)
			for ; err != nil; err = errors.Unwrap(err) {
				require.NotContains(t, err.Error(), "SECRET")
			}
		}
	}
	require.Contains(t, b.log.String(), "notice given up")
	require.NotContains(t, b.log.String(), "SECRET")
}

func TestAStatusSaysHowTheBuildEnded(t *testing.T) {
	t.Parallel()
	dirty := true
	for want, b := range map[string]store.Build{
		"":             {},
		"exit code 75": {Ended: "exit:75"},
		"time limit exceeded, with changes that are not committed, branch main":          {Ended: "timeout", Inputs: &store.Inputs{Facts: store.Facts{Branch: "main", Dirty: &dirty}}},
		"signal 9, branch " + strings.Repeat("b", 140-len("signal 9, branch  …")) + " …": {Ended: "signal:9", Inputs: &store.Inputs{Facts: store.Facts{Branch: strings.Repeat("b", 255)}}},
	} {
		require.Equal(t, want, describe(b))
		require.LessOrEqual(t, len(describe(b)), maxDescription)
	}
}
