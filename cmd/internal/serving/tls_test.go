package serving

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/settings"
	"takt/http/tlstest"
)

// at is a listener that only has an address.
type at struct {
	net.Listener
	ip net.IP
}

func (a at) Addr() net.Addr { return &net.TCPAddr{IP: a.ip, Port: 3000} }

func TestPlainHTTPForOthersIsWarnedOf(t *testing.T) {
	t.Parallel()
	for ip, warned := range map[string]bool{"127.0.0.1": false, "::1": false, "0.0.0.0": true, "::": true, "192.0.2.1": true} {
		var log bytes.Buffer
		c := controller{log: zerolog.New(&log), listener: at{ip: net.ParseIP(ip)}}
		c.warnOfPlainHTTP()
		require.Equal(t, warned, strings.Contains(log.String(), "sent unencrypted"), ip)
	}
	cert, key := tlstest.NewAuthority(t).Issue(t, t.TempDir(), 1)
	var log bytes.Buffer
	c := controller{log: zerolog.New(&log), listener: at{ip: net.IPv4zero}}
	var err error
	c.tls, err = settings.OpenTLS(settings.Config{TLSCert: cert, TLSKey: key}, zerolog.New(io.Discard))
	require.NoError(t, err)
	c.warnOfPlainHTTP()
	require.Empty(t, log.String())
}
