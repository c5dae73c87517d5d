package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestStatesKnowWhatTheyAllow(t *testing.T) {
	t.Parallel()
	for state, want := range map[store.BuildState]struct {
		final, held bool
		wire        string
	}{
		store.Pending:   {false, false, "pending"},
		store.Assigned:  {false, true, "assigned"},
		store.Building:  {false, true, "building"},
		store.Completed: {true, false, "completed"},
		store.Failed:    {true, false, "failed"},
		store.Cancelled: {true, false, "failed"},
	} {
		require.Equal(t, want.final, state.Final(), state)
		require.Equal(t, want.held, state.Held(), state)
		require.Equal(t, want.wire, state.Wire(), state)
	}
}

func TestPlatformsAndLevels(t *testing.T) {
	t.Parallel()
	for p, exts := range map[store.Platform][2]string{
		store.IOS: {"app.zip", ".ipa"}, store.Android: {"app", ".apk"}, "linux": {"app.tar.GZ", ".gz"}, "web": {"site.exe!", ".bin"}, "macos": {"app", ".bin"},
		"deb": {"app.123456789", ".bin"}, "rpm": {"a/b.d/app", ".bin"},
	} {
		require.True(t, p.Valid())
		require.Equal(t, exts[1], p.ResultExt(exts[0]), p)
	}
	for _, p := range []store.Platform{"", "-", "iOS", "a b", "ä", "linux/amd64", store.Platform(strings.Repeat("x", 33))} {
		require.False(t, p.Valid(), p)
	}
	require.True(t, store.Warn.Valid())
	require.False(t, store.Level("debug").Valid())
}

func TestIDsAreWhatVMScriptsAccept(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"a", "V1StGXR8_Z5jdHi6B-myT", strings.Repeat("x", store.MaxIDLength)} {
		require.True(t, store.ValidID(id), id)
	}
	for _, id := range []string{"", "a b", "../etc", "a/b", "ä", "a\n", "a\x00", strings.Repeat("x", store.MaxIDLength+1), "%2e"} {
		require.False(t, store.ValidID(id), "%q", id)
	}
}

func TestBuildTokens(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		token := store.NewBuildToken()
		require.Regexp(t, `^[A-Za-z0-9_-]{43}$`, token)
		require.False(t, seen[token], "tokens repeat")
		seen[token] = true
		require.True(t, store.HashToken(token).Equal(store.HashToken(token)))
	}
	require.False(t, store.HashToken("a").Equal(store.HashToken("b")))
	require.True(t, store.TokenHash{}.IsZero())
	require.False(t, store.HashToken("").IsZero())
}

func TestCodesSurviveWrapping(t *testing.T) {
	t.Parallel()
	cause := errors.New("socket closed")
	err := fmt.Errorf("submitting: %w", store.Wrap(store.Unavailable, "Try again", cause))
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.ErrorIs(t, err, cause)
	require.Equal(t, store.Internal, store.CodeOf(cause))
	require.Empty(t, store.CodeOf(nil))
	require.Equal(t, "not_found: Build not found", store.NewError(store.NotFound, "Build not found").Error())
}

func TestErrorTextsAreCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", store.ErrorText("short"))
	whole := strings.Repeat("é", 4096)
	require.Equal(t, whole, store.ErrorText(whole))
	for _, long := range []string{whole + "é", "x" + whole, strings.Repeat("x", 1<<20), strings.Repeat("\x00", 8000)} {
		got := store.ErrorText(long)
		require.LessOrEqual(t, len(got), 8<<10)
		require.Greater(t, len(got), 8<<10-8)
		require.True(t, utf8.ValidString(got))
		require.True(t, strings.HasSuffix(got, " …"))
	}
}
