package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// inS3 makes a submission's source lie in S3 only, with certs whose copy is pending.
func inS3(s *store.Submission) {
	s.Source.Location, s.Source.Object = store.InS3, s.Source.Name+".object"
	certs := s.Source
	certs.Name, certs.Location, certs.Object, certs.CopyPending = "builds/"+s.ID+"/certs.zip", store.OnDisk, "", true
	s.Certs = &certs
}

func TestFilesSayWhereTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	files := postgres.NewFiles(b.DB)
	build := b.build(inS3)
	require.Equal(t, build.Source, b.find(build.ID).Source)
	require.Equal(t, build.Certs, b.find(build.ID).Certs)
	plain := b.build()
	require.Equal(t, store.OnDisk, b.find(plain.ID).Source.Location)

	all := must(files.Page(t.Context(), store.FileKey{}, 2))(t)
	require.Len(t, all, 2)
	require.Equal(t, store.CertsFile, all[0].Kind)
	require.True(t, all[0].Sealed())
	require.Equal(t, build.ID, all[0].BuildID)
	require.Equal(t, *build.Source, all[1].File)
	rest := must(files.Page(t.Context(), all[1].FileKey, 2))(t)
	require.Len(t, rest, 1)
	count, bytes, err := files.Count(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, count)
	require.Equal(t, all[0].Size+all[1].Size+rest[0].Size, bytes)

	require.Equal(t, rest[0], must(files.Find(t.Context(), rest[0].FileKey))(t))
	require.Equal(t, store.NotFound, codeOf(files.Find(t.Context(), store.FileKey{Build: rest[0].Build, Kind: store.ResultFile})))
}

func TestOwedCopiesAreClaimedAndRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	files := postgres.NewFiles(b.DB)
	build := b.build(inS3)
	pending := must(files.PendingCopies(t.Context(), store.FileKey{}, 10))(t)
	require.Len(t, pending, 1)
	for _, want := range []bool{true, false} {
		require.Equal(t, want, must(files.Postpone(t.Context(), pending[0].FileKey, time.Hour))(t), "one claims it")
	}
	require.Empty(t, must(files.PendingCopies(t.Context(), store.FileKey{}, 10))(t))
	must(files.Postpone(t.Context(), pending[0].FileKey, 0))(t)
	require.Equal(t, pending, must(files.PendingCopies(t.Context(), store.FileKey{}, 10))(t), "the claim was given back")
	require.Equal(t, 1, must(files.CountPendingCopies(t.Context()))(t))

	for _, want := range []bool{true, false} {
		require.Equal(t, want, must(files.Move(t.Context(), pending[0], store.InBoth, "key"))(t), "the row said something else by then")
	}
	certs := b.find(build.ID).Certs
	require.Equal(t, store.InBoth, certs.Location)
	require.Equal(t, "key", certs.Object)
	require.False(t, certs.CopyPending)
}

func TestOnlyWhatNoRowNamesIsRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	files := postgres.NewFiles(b.DB)
	s3, local := b.build(inS3), b.build()
	unnamed := must(files.Unnamed(t.Context(), []string{"builds/none/x", local.Source.Name, s3.Source.Name}, false))(t)
	require.ElementsMatch(t, []string{"builds/none/x", s3.Source.Name}, unnamed, "what is in S3 only needs no local file")
	unnamed = must(files.Unnamed(t.Context(), []string{"other", s3.Source.Object}, true))(t)
	require.Equal(t, []string{"other"}, unnamed)

	calls := 0
	remove := func() error { calls++; return nil }
	removed := must(files.IfUnnamed(t.Context(), local.ID, local.Source.Name, false, remove))(t)
	require.False(t, removed)
	for _, id := range []string{local.ID, "unknown"} {
		removed = must(files.IfUnnamed(t.Context(), id, "builds/"+id+"/other", false, remove))(t)
		require.True(t, removed)
	}
	require.Equal(t, 2, calls)
	cause := errors.New("disk on fire")
	_, err := files.IfUnnamed(t.Context(), "unknown", "x", true, func() error { return cause })
	require.ErrorIs(t, err, cause)
}

func TestRemovalWaitsForAResultThatIsBeingRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	files := postgres.NewFiles(b.DB)
	build, w := b.build(), b.worker()
	w.gets(build.ID)
	result := success(build.ID, w.id)
	placed, sweeping := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := b.builds.Finish(t.Context(), result, staged(func() error {
			close(placed)
			<-sweeping
			return nil
		}))
		done <- err
	}()
	<-placed
	removal := make(chan bool, 1)
	go func() {
		removed, err := files.IfUnnamed(t.Context(), build.ID, result.File.Name, false, func() error { return nil })
		removal <- removed || err != nil
	}()
	b.waits(1) // the removal has begun
	close(sweeping)
	require.NoError(t, <-done)
	require.False(t, <-removal, "the file has its row")
}

func TestRetentionTakesOnlyWhatEndedLongAgo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	files := postgres.NewFiles(b.DB)
	w := b.worker(slots(10))
	var ids []string
	for range 5 {
		build := b.build(inS3)
		w.gets(build.ID)
		ids = append(ids, build.ID)
	}
	old, fresh, running, alsoOld := ids[0], ids[1], ids[2], ids[3]
	for _, id := range []string{old, fresh, alsoOld, ids[4]} {
		w.finishes(id)
	}
	b.exec(`UPDATE builds SET submitted_at = now() - interval '9 days' WHERE id <> $1`, ids[4])
	b.exec(`UPDATE builds SET completed_at = now() - interval '8 days' WHERE id = ANY ($1)`, []string{old, alsoOld})

	var gone []string
	pages, after := 0, int64(0)
	for {
		expired, next, err := files.ExpireFiles(t.Context(), store.SourceFile, 7*24*time.Hour, after, 2)
		require.NoError(t, err)
		for _, f := range expired {
			require.Equal(t, store.SourceFile, f.Kind)
			require.NotEmpty(t, f.Object, "its caller has to find it")
			gone = append(gone, f.BuildID)
		}
		pages++
		if after = next; next == 0 {
			break
		}
	}
	require.ElementsMatch(t, []string{old, alsoOld}, gone)
	require.Equal(t, 3, pages)
	require.Nil(t, b.find(old).Source)
	require.NotNil(t, b.find(old).Certs, "other kinds stay")
	require.NotNil(t, b.find(old).Result)
	require.NotNil(t, b.find(fresh).Source)
	require.NotNil(t, b.find(running).Source)

	builds, next, err := files.ExpireLogs(t.Context(), 7*24*time.Hour, 0, 100)
	require.NoError(t, err)
	require.Equal(t, 2, builds)
	require.Zero(t, next)
	require.Empty(t, b.logs(old))
	require.NotEmpty(t, b.logs(running))
}

func TestChoresAreDoneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	files := postgres.NewFiles(b.DB)
	for _, want := range []bool{true, false, false} {
		require.Equal(t, want, must(files.ClaimChores(t.Context(), time.Hour))(t))
	}
	b.exec(`UPDATE settings SET updated_at = now() - interval '1 hour' WHERE key = 'chores'`)
	require.True(t, must(files.ClaimChores(t.Context(), time.Hour))(t))
}
