package database

import (
	"errors"
	"os/user"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store/backoff"
)

func TestParseMajor(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 17beta1":                          17,
		"initdb (PostgreSQL) 18devel":                            18,
	} {
		require.Equal(t, want, must(parseMajor(version))(t))
	}
	_, err := parseMajor("bash: postgres: command not found")
	require.Error(t, err)
}

func TestChooseBinaries(t *testing.T) {
	t.Parallel()
	found := []Binaries{{Dir: "/a", Major: 17}, {Dir: "/b", Major: 15}}
	require.Equal(t, 17, must(chooseBinaries(found, 0, "/d"))(t).Major)
	require.Equal(t, "/b", must(chooseBinaries(found, 15, "/d"))(t).Dir)
	_, err := chooseBinaries(found, 16, "/d")
	require.ErrorContains(t, err, "only PostgreSQL 17 in /a, 15 in /b")
}

func TestParsePIDFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]pidFile{
		"4711\n/proc/self/fd/3\n1700000000\n5432\n.\n\n  5432001    196608\nready   \n": {PID: 4711, Status: "ready"},
		"-4711\n/data\n": {PID: 4711},
		"":               {}, "\n": {}, "x\n": {}, "0\n": {}, // torn
	} {
		require.Equal(t, want, parsePIDFile(text), "%q", text)
	}
}

func TestChooseOwner(t *testing.T) {
	t.Parallel()
	accounts := func(names ...string) func(string) (*user.User, error) {
		return func(name string) (*user.User, error) {
			for i, n := range names {
				if n == name {
					return &user.User{Uid: []string{"101", "65534"}[i], Gid: "7"}, nil
				}
			}
			return nil, errors.New("unknown")
		}
	}
	for _, c := range []struct {
		name      string
		euid      int
		existing  *owner
		accounts  []string
		want      owner
		wantError string
	}{
		{name: "a user stays itself", euid: 1000, want: owner{uid: 1000, gid: 1}},
		{name: "a user keeps its cluster", euid: 1000, existing: &owner{uid: 1000}, want: owner{uid: 1000, gid: 1}},
		{name: "a user gets no other's cluster", euid: 1000, existing: &owner{uid: 5}, wantError: "belongs to user id 5"},
		{name: "root becomes postgres", accounts: []string{"postgres", "nobody"}, want: owner{uid: 101, gid: 7, drop: true}},
		{name: "root becomes nobody", accounts: []string{"", "nobody"}, want: owner{uid: 65534, gid: 7, drop: true}},
		{name: "root becomes the cluster's owner", existing: &owner{uid: 5, gid: 6}, want: owner{uid: 5, gid: 6, drop: true}},
		{name: "root alone is stuck", wantError: "run takt as another user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := chooseOwner(c.euid, 1, c.existing, accounts(c.accounts...))
			if c.wantError != "" {
				require.ErrorContains(t, err, c.wantError)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestRetriesTakeOneToThirtySeconds(t *testing.T) {
	t.Parallel()
	for _, b := range []backoff.Backoff{NewPool(PoolConfig{}).cfg.Backoff, NewListener(ListenerConfig{}).cfg.Backoff} {
		for n := range 100 {
			require.GreaterOrEqual(t, b.Wait(n), time.Second)
			require.LessOrEqual(t, b.Wait(n), 30*time.Second)
		}
		require.GreaterOrEqual(t, b.Wait(5), 15*time.Second)
	}
}

func TestWaitMeter(t *testing.T) {
	t.Parallel()
	var m waitMeter
	_, _, slow := m.observe(0, 0, true)
	require.False(t, slow)
	n, mean, slow := m.observe(10, 400*time.Millisecond, true)
	require.EqualValues(t, 10, n)
	require.Equal(t, 40*time.Millisecond, mean)
	require.False(t, slow)
	_, mean, slow = m.observe(12, time.Second, true)
	require.Equal(t, 300*time.Millisecond, mean)
	require.True(t, slow)
	_, _, slow = m.observe(12, time.Second, true)
	require.False(t, slow, "nobody waited since")
	_, mean, slow = m.observe(13, 2*time.Second, false)
	require.Equal(t, time.Second, mean)
	require.False(t, slow, "it waited for a new connection")
}
