package notices

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyPublicAddressesAreAllowed(t *testing.T) {
	t.Parallel()
	allow := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}
	for _, public := range []string{"93.184.216.34:443", "[2606:2800:220:1::1]:443", "10.1.2.3:80", "[::ffff:10.1.2.3]:80", "[fd00:1::5]:80"} {
		require.NoError(t, check(public, allow), public)
	}
	for _, hidden := range []string{
		"127.0.0.1:80", "[::1]:80", "0.0.0.0:80", "[::]:80", "10.2.0.1:80", "172.16.0.1:80", "192.168.1.1:80", "169.254.169.254:80", "100.64.0.1:80",
		"192.0.0.8:80", "198.18.0.1:80", "224.0.0.1:80", "255.255.255.255:80", "[::ffff:127.0.0.1]:80", "[fe80::1%eth0]:80", "[fd00:2::1]:80",
		"[64:ff9b::7f00:1]:80", "[64:ff9b:1::1]:80", "[2002:7f00:1::]:80", "[2001::1]:80", "[ff02::1]:80", "[::127.0.0.1]:80", "localhost:80",
	} {
		require.Error(t, check(hidden, allow), hidden)
	}
}
