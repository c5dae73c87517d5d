package storetest

import (
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// Build submits a build: for iOS, without certs, unless edit says otherwise.
func Build(tb testing.TB, db *postgres.DB, edit ...func(*store.Submission)) store.Build {
	tb.Helper()
	id := store.NewID()
	s := store.Submission{
		ID:        id,
		Platform:  store.IOS,
		TokenHash: store.HashToken(store.NewBuildToken()),
		Source:    File("builds/"+id+"/source.zip", "source of "+id),
	}
	for _, e := range edit {
		e(&s)
	}
	b, err := postgres.NewBuilds(db, postgres.BuildsConfig{QueueLimit: 1 << 30}).Submit(tb.Context(), s)
	require.NoError(tb, err)
	return b
}

// File describes a file with that content.
func File(name, content string) store.File {
	return store.File{Name: name, Size: int64(len(content)), SHA256: sha256.Sum256([]byte(content)), Location: store.OnDisk}
}

// RegisteredWorker is a worker with its first token.
type RegisteredWorker struct {
	store.Registration
	// Token is the content of the token.
	Token store.WorkerToken
}

// Request is the worker's first poll.
func (w RegisteredWorker) Request() store.PollRequest {
	return store.PollRequest{Token: w.Token, Presented: "the first token of " + w.ID}
}

// Tokens returns the tokens of db's workers, with a key that all tests share.
func Tokens(tb testing.TB, db *postgres.DB) *store.WorkerTokens {
	tb.Helper()
	tokens := store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32))
	now, err := postgres.NewQueue(db, postgres.QueueConfig{}).Recount(tb.Context(), 1, nil, nil)
	require.NoError(tb, err)
	require.NoError(tb, tokens.Learn(now.Installation, now.Now))
	return tokens
}

// Worker registers a worker: one slot, ios and android, unless edit says
// otherwise.
func Worker(tb testing.TB, db *postgres.DB, edit ...func(*store.Registration)) RegisteredWorker {
	tb.Helper()
	r := store.Registration{ID: store.NewID(), Name: "test worker", Capabilities: []byte(`{}`), Slots: 1}
	for _, e := range edit {
		e(&r)
	}
	reg, err := postgres.NewWorkers(db).Register(tb.Context(), r)
	require.NoError(tb, err)
	return RegisteredWorker{Registration: r, Token: reg.Token}
}

// Logs returns the lines of a build after line seq after.
func Logs(tb testing.TB, db *postgres.DB, id string, after int64) (lines []store.LogLine) {
	tb.Helper()
	for {
		t, err := postgres.NewBuilds(db, postgres.BuildsConfig{}).Tail(tb.Context(), id, after, 1000)
		require.NoError(tb, err)
		if lines = append(lines, t.Lines...); !t.More {
			return lines
		}
		after = lines[len(lines)-1].Seq
	}
}
