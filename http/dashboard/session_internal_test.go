package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/edge"
)

func TestOwnPathsOnly(t *testing.T) {
	t.Parallel()
	for path, ok := range map[string]bool{
		"/fleet": true, "/builds?state=failed": true, "//elsewhere.example": false, "///elsewhere.example": false, "https://elsewhere.example/": false, "/\\elsewhere.example": false,
		"elsewhere": false, "": false, "/login?next=/x": false, "/a\nb": false, "javascript:alert(1)": false,
	} {
		require.Equal(t, ok, ownPath(path, "-") == path, path)
	}
}

func TestSessionsAreOursAndEnd(t *testing.T) {
	t.Parallel()
	cfg, keys := Config{Secrets: [][]byte{[]byte("old")}}, edge.Config{APIKey: "api-key-of-the-test", AdminKey: "admin-key-of-the-test"}
	s := newSessions(cfg, keys, edge.NewKeys(keys, nil))
	now := time.Now()
	value := s.issue(session{edge.Session{Role: edge.RoleAPI, Name: "tester", ID: "x"}, now.Add(time.Hour).Unix()})
	require.Equal(t, "tester", s.read(value, now).Name)
	require.Nil(t, s.read(value, now.Add(2*time.Hour)), "over")
	require.Nil(t, s.read(value+"x", now))
	require.Nil(t, s.read("x"+value, now))
	require.Nil(t, s.read("", now))
	of := func(change func(*Config, *edge.Config)) *session {
		cfg, keys := cfg, keys
		change(&cfg, &keys)
		return newSessions(cfg, keys, edge.NewKeys(keys, nil)).read(value, now)
	}
	require.NotNil(t, of(func(*Config, *edge.Config) {}), "on another controller")
	require.Nil(t, of(func(_ *Config, k *edge.Config) { k.AdminKey = "another-admin-key" }), "a changed key ends sessions")
	require.Nil(t, of(func(_ *Config, k *edge.Config) { k.APIKey = "another-api-key" }))
	require.NotNil(t, of(func(c *Config, _ *edge.Config) { c.Secrets = [][]byte{[]byte("new"), []byte("old")} }), "a change of the encryption key ends none")
	require.Nil(t, of(func(c *Config, _ *edge.Config) { c.Secrets = [][]byte{[]byte("new")} }), "who knows both keys makes no session without the encryption key")
}
