package edge

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/tlstest"
)

func (c *Certificate) serial() int64 { return c.current.Load().Leaf.SerialNumber.Int64() }

func TestCertificateIsReadAnewWhenItsFilesChange(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), tlstest.NewAuthority(t)
	cert, key := ca.Issue(t, dir, 1)
	var log bytes.Buffer
	c, err := OpenCertificate(cert, key, zerolog.New(&log))
	require.NoError(t, err)
	now := time.Now()
	look := func() { // as a handshake does, a while later
		now = now.Add(certificateCheck)
		c.refresh(now)
	}
	look()
	require.EqualValues(t, 1, c.serial())

	ca.Issue(t, dir, 2)
	c.refresh(now)
	require.EqualValues(t, 1, c.serial(), "not looked at again so soon")
	look()
	require.EqualValues(t, 2, c.serial())
	require.NotContains(t, log.String(), "error")

	serial := int64(2)
	for name, breaks := range map[string]func(){
		"no certificate":      func() { tlstest.Replace(t, cert, []byte("nonsense")) },
		"another's key":       func() { other := t.TempDir(); _, k := ca.Issue(t, other, 9); require.NoError(t, os.Rename(k, key)) },
		"a file that is gone": func() { require.NoError(t, os.Remove(key)) },
	} {
		log.Reset()
		breaks()
		for range 3 {
			look()
			require.Equal(t, serial, c.serial(), name)
		}
		require.Equal(t, 1, strings.Count(log.String(), `"level":"error"`), "%s is told once: %s", name, log.String())
		require.NotContains(t, log.String(), "PRIVATE KEY")
		serial++
		ca.Issue(t, dir, serial)
		look()
		require.Equal(t, serial, c.serial(), "a good pair is taken after a bad one")
	}
	require.WithinDuration(t, time.Now().Add(time.Hour), c.NotAfter(), time.Minute)
}

func TestCertificateThatIsBehindALinkIsFollowed(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), tlstest.NewAuthority(t)
	for i, sub := range []string{"one", "two"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o700))
		ca.Issue(t, filepath.Join(dir, sub), int64(i+1))
	}
	link := filepath.Join(dir, "current")
	require.NoError(t, os.Symlink("one", link))
	c, err := OpenCertificate(filepath.Join(link, "tls.crt"), filepath.Join(link, "tls.key"), zerolog.Nop())
	require.NoError(t, err)
	require.NoError(t, os.Symlink("two", link+".new"))
	require.NoError(t, os.Rename(link+".new", link))
	c.refresh(time.Now().Add(certificateCheck))
	require.EqualValues(t, 2, c.serial())
}

func TestOpenKeyFileIsWarnedOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := tlstest.NewAuthority(t).Issue(t, dir, 1)
	var log bytes.Buffer
	_, err := OpenCertificate(cert, key, zerolog.New(&log))
	require.NoError(t, err)
	require.NotContains(t, log.String(), "can be read by others")
	require.NoError(t, os.Chmod(key, 0o640))
	_, err = OpenCertificate(cert, key, zerolog.New(&log))
	require.NoError(t, err)
	require.Contains(t, log.String(), "can be read by others")
}

func TestUselessCertificatesAreNotOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := tlstest.NewAuthority(t).Issue(t, dir, 1)
	for _, files := range [][2]string{{cert, cert}, {key, key}, {cert, filepath.Join(dir, "none")}, {filepath.Join(dir, "none"), key}, {dir, key}} {
		_, err := OpenCertificate(files[0], files[1], zerolog.Nop())
		require.Error(t, err)
	}
}
