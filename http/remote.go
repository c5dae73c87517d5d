package http

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// remote is the address that r comes from: that of its connection, unless this
// belongs to a trusted proxy. Then it is the last address of X-Forwarded-For
// that no trusted proxy has: what stands before it, anybody could have written.
func remote(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // a listener without addresses
	}
	addr := peer.Addr().Unmap()
	if len(trusted) == 0 {
		return addr
	}
	return behindProxies(addr, r.Header["X-Forwarded-For"], trusted)
}

// behindProxies walks from the connection's address to the first that is not
// trusted. An entry that is no address ends the way: who wrote it is known, who
// is meant is not.
func behindProxies(addr netip.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	for _, list := range slices.Backward(forwarded) {
		for _, entry := range slices.Backward(strings.Split(list, ",")) {
			if !isTrusted(addr, trusted) {
				return addr
			}
			next, ok := forwardedAddr(strings.TrimSpace(entry))
			if !ok {
				return addr
			}
			addr = next
		}
	}
	return addr
}

// forwardedAddr reads an entry of X-Forwarded-For; some proxies add the port.
func forwardedAddr(entry string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(entry)
	if err != nil {
		withPort, err := netip.ParseAddrPort(entry)
		if err != nil {
			return netip.Addr{}, false
		}
		addr = withPort.Addr()
	}
	return addr.Unmap().WithZone(""), true
}

func isTrusted(addr netip.Addr, trusted []netip.Prefix) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// quotaAddr is the part of an address that shares a quota. Of IPv6 it is the
// network: who has one address has 2⁶⁴ of them.
func quotaAddr(addr netip.Addr) string {
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			addr = p.Addr()
		}
	}
	b := addr.As16()
	return string(b[:])
}

// printAddr is what quotaAddr counts, to be read.
func printAddr(who string) string {
	addr, ok := netip.AddrFromSlice([]byte(who))
	if !ok || addr.IsUnspecified() {
		return "unknown"
	}
	if addr = addr.Unmap(); addr.Is6() {
		return addr.String() + "/64"
	}
	return addr.String()
}
