package edge

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Remote is the address that r comes from. Usually it is the connection's address. If
// that is a trusted proxy, it is the last address of X-Forwarded-For that is not a
// trusted proxy, because a client may have forged the entries before it.
func Remote(r *http.Request, trusted []netip.Prefix) netip.Addr {
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

// behindProxies walks from the connection's address back to the first that is not
// trusted. It stops at an entry that is not an address and returns the proxy that wrote
// it.
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

// quotaAddr is the part of an address that shares a quota. For IPv6 it is the /64
// network, because one client can use all of its 2⁶⁴ addresses.
func quotaAddr(addr netip.Addr) string {
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			addr = p.Addr()
		}
	}
	b := addr.As16()
	return string(b[:])
}

// printAddr is quotaAddr's result in readable form.
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

// RemoteHost is the address of a request's connection, without its port.
func RemoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
