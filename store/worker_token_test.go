package store_test

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest/faketime"
)

func secret(b byte) []byte { return []byte(strings.Repeat(string(rune(b)), 32)) }

// tokens are known ones that are valid as long as those of the product.
func tokens(tb testing.TB, installation string, now time.Time, secrets ...[]byte) *store.WorkerTokens {
	tb.Helper()
	t := store.NewWorkerTokens(store.WorkerTokenTTL, secrets...)
	require.NoError(tb, t.Learn(installation, now))
	return t
}

func TestAWorkerTokenSaysWhatWasIssued(t *testing.T) {
	t.Parallel()
	k := tokens(t, "here", time.Now(), secret('a'))
	for _, want := range []store.WorkerToken{{Worker: 1, Counter: 1}, {Worker: 1<<32 - 1, Counter: 1<<48 - 1}, {Worker: 0x01020304, Counter: 0x060708090a0b}} {
		token := k.Issue(want)
		require.Regexp(t, `^[A-Za-z0-9_-]{32}$`, token)
		got, err := k.Check(token)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestAWorkerTokenIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	k := tokens(t, "here", now, secret('b'), secret('a'))
	w := store.WorkerToken{Worker: 7, Counter: 9}
	good := k.Issue(w)
	for name, token := range map[string]string{
		"of nobody":                    "",
		"too short":                    good[:31],
		"too long":                     good + "A",
		"not base64url":                good[:31] + "+",
		"of another installation":      tokens(t, "there", now, secret('b')).Issue(w),
		"under an unknown key":         tokens(t, "here", now, secret('c')).Issue(w),
		"expired":                      tokens(t, "here", now.Add(-91*time.Second), secret('b')).Issue(w),
		"more than 60 s in the future": tokens(t, "here", now.Add(62*time.Second), secret('b')).Issue(w),
		"as of old, by chance":         strings.Repeat("A", 32),
	} {
		_, err := k.Check(token)
		require.Equal(t, store.InvalidToken, store.CodeOf(err), name)
	}
	for name, token := range map[string]string{
		"under an old key":       tokens(t, "here", now, secret('a')).Issue(w),
		"a little in the future": tokens(t, "here", now.Add(58*time.Second), secret('b')).Issue(w),
		"about to expire":        tokens(t, "here", now.Add(-85*time.Second), secret('b')).Issue(w),
	} {
		got, err := k.Check(token)
		require.NoError(t, err, name)
		require.Equal(t, w, got, name)
	}
	raw, err := base64.RawURLEncoding.DecodeString(good)
	require.NoError(t, err)
	for bit := range len(raw) * 8 {
		raw[bit/8] ^= 1 << (bit % 8)
		_, err := k.Check(base64.RawURLEncoding.EncodeToString(raw))
		require.Equal(t, store.InvalidToken, store.CodeOf(err), "bit %d", bit)
		raw[bit/8] ^= 1 << (bit % 8)
	}
}

func TestNothingIsKnownBeforeTheInstallation(t *testing.T) {
	t.Parallel()
	k := store.NewWorkerTokens(time.Minute, secret('a'))
	require.Equal(t, store.Unavailable, store.CodeOf(k.Ready()))
	require.Empty(t, k.Issue(store.WorkerToken{Worker: 1}))
	_, err := k.Check(strings.Repeat("A", 32))
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.NoError(t, k.Learn("here", time.Now()))
	require.NoError(t, k.Ready())
}

// Only the database's clock counts, wherever the controller's stands.
func TestTokensExpireByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		database := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
		one, two := tokens(t, "here", database, secret('a')), tokens(t, "here", database, secret('a'))
		token := one.Issue(store.WorkerToken{Worker: 1, Counter: 1})
		raw, err := base64.RawURLEncoding.DecodeString(token)
		require.NoError(t, err)
		require.EqualValues(t, database.Add(90*time.Second).Unix(), binary.BigEndian.Uint32(raw[10:]))
		faketime.Pass(89 * time.Second)
		_, err = two.Check(token)
		require.NoError(t, err)
		faketime.Pass(2 * time.Second)
		_, err = two.Check(token)
		require.Equal(t, store.InvalidToken, store.CodeOf(err))
		require.NoError(t, two.Learn("here", database.Add(time.Minute)), "the clock was set back")
		_, err = two.Check(token)
		require.NoError(t, err)
	})
}

func FuzzWorkerToken(f *testing.F) {
	k := tokens(f, "here", time.Now(), secret('a'))
	for _, s := range []string{"", "short", k.Issue(store.WorkerToken{Worker: 1, Counter: 2}), strings.Repeat("-", 32), "\xff\x00ä\u2028", strings.Repeat("A", 31) + "="} {
		f.Add(s, uint32(1), uint64(2))
	}
	f.Fuzz(func(t *testing.T, forged string, worker uint32, counter uint64) {
		want := store.WorkerToken{Worker: worker, Counter: counter & (1<<48 - 1)}
		good := k.Issue(want)
		got, err := k.Check(good)
		require.NoError(t, err)
		require.Equal(t, want, got)
		got, err = k.Check(forged)
		if err != nil {
			require.Equal(t, store.InvalidToken, store.CodeOf(err))
			require.Zero(t, got)
			return
		}
		require.Len(t, forged, 32, "only what was issued is accepted")
	})
}
