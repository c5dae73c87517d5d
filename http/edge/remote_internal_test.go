package edge

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func prefixes(tb testing.TB, texts ...string) []netip.Prefix {
	tb.Helper()
	var out []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		require.NoError(tb, err)
		out = append(out, p)
	}
	return out
}

func TestRemoteAddress(t *testing.T) {
	t.Parallel()
	proxies := []string{"10.0.0.0/8", "fd00::/8"}
	for name, tt := range map[string]struct {
		peer      string
		forwarded []string
		trusted   []string
		want      string
	}{
		"nobody is trusted by default":               {"10.0.0.1:5", []string{"192.0.2.1"}, nil, "10.0.0.1"},
		"an unknown peer's is not believed":          {"192.0.2.9:5", []string{"192.0.2.1"}, proxies, "192.0.2.9"},
		"a proxy's is":                               {"10.0.0.1:5", []string{"192.0.2.1"}, proxies, "192.0.2.1"},
		"the rightmost that is not trusted counts":   {"10.0.0.1:5", []string{"198.51.100.1, 192.0.2.1, 10.0.0.2"}, proxies, "192.0.2.1"},
		"what the client wrote itself counts not":    {"10.0.0.1:5", []string{"10.9.9.9, 192.0.2.1"}, proxies, "192.0.2.1"},
		"several headers are one list":               {"10.0.0.1:5", []string{"198.51.100.1", "192.0.2.1", "10.0.0.2"}, proxies, "192.0.2.1"},
		"proxies alone leave the first of them":      {"10.0.0.1:5", []string{"10.0.0.3, 10.0.0.2"}, proxies, "10.0.0.3"},
		"no header leaves the connection's":          {"10.0.0.1:5", nil, proxies, "10.0.0.1"},
		"an empty header likewise":                   {"10.0.0.1:5", []string{""}, proxies, "10.0.0.1"},
		"no address ends the way":                    {"10.0.0.1:5", []string{"192.0.2.1, unknown, 10.0.0.2"}, proxies, "10.0.0.2"},
		"ports are left out":                         {"10.0.0.1:5", []string{"192.0.2.1:4711"}, proxies, "192.0.2.1"},
		"IPv6 with a port":                           {"[fd00::1]:5", []string{"[2001:db8::1]:80"}, proxies, "2001:db8::1"},
		"IPv4 in IPv6 is IPv4":                       {"[::ffff:10.0.0.1]:5", []string{"::ffff:192.0.2.1"}, proxies, "192.0.2.1"},
		"a zone is left out":                         {"10.0.0.1:5", []string{"fe80::1%eth0"}, proxies, "fe80::1"},
		"a listener without addresses has no remote": {"@", []string{"192.0.2.1"}, proxies, "invalid IP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &http.Request{RemoteAddr: tt.peer, Header: http.Header{"X-Forwarded-For": tt.forwarded}}
			require.Equal(t, tt.want, Remote(r, prefixes(t, tt.trusted...)).String())
		})
	}
}

func TestQuotaIsSharedByAnIPv6Network(t *testing.T) {
	t.Parallel()
	key := func(a string) string { return quotaAddr(netip.MustParseAddr(a)) }
	require.Equal(t, key("2001:db8::1"), key("2001:db8::ffff"))
	require.NotEqual(t, key("2001:db8::1"), key("2001:db8:0:1::1"))
	require.NotEqual(t, key("192.0.2.1"), key("192.0.2.2"))
	require.NotPanics(t, func() { quotaAddr(netip.Addr{}) })
}

func FuzzForwardedFor(f *testing.F) {
	for _, h := range []string{"", "192.0.2.1", "192.0.2.1, 10.0.0.1", ",,,", "[::1]:1,", "::ffff:10.1.1.1", "fe80::1%a,10.0.0.2", "unknown", "1.2.3.4:99999", "10.0.0.1, 10.0.0.2"} {
		f.Add(h, "10.0.0.1")
	}
	trusted := prefixes(f, "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, header, peer string) {
		from, err := netip.ParseAddr(peer)
		if err != nil {
			from = netip.MustParseAddr("10.0.0.1")
		}
		got := behindProxies(from, []string{header}, trusted)
		require.True(t, got.IsValid())
		if !isTrusted(from, trusted) {
			require.Equal(t, from, got, "an unknown peer's word is not taken")
		}
	})
}
