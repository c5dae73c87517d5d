package notices

import (
	"fmt"
	"net/netip"
	"slices"
)

// ipv6 is what is allocated as global unicast addresses. All others have a special purpose.
var ipv6 = netip.MustParsePrefix("2000::/3")

// reserved are networks that are not public, beside those that netip knows: IANA's registries of
// special-purpose addresses, but for those of services that no receiver uses.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	// Documentation.
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("3fff::/20"),
	// Protocols, among them Teredo, and 6to4: these two carry an IPv4 address inside.
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2002::/16"),
}

// check refuses an address that a connection is about to be made to. The dialer calls it
// after names were resolved, so a name can't hide the address. An IPv4 address in IPv6 notation
// (::ffff:0:0/96) is connected to as IPv4, and judged so.
func check(address string, allow []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	ip := at.Addr().Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(ip) }
	global := ip.IsGlobalUnicast() && !ip.IsPrivate() && (ip.Is4() || ipv6.Contains(ip))
	if slices.ContainsFunc(allow, in) || global && !slices.ContainsFunc(reserved, in) {
		return nil
	}
	return fmt.Errorf("%s is not a public address, and notice-allow does not list it", ip)
}
