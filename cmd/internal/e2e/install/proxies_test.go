package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/tlstest"
	"takt/store/storetest/tied"
)

// proxy is a real server in front of a controller, with a configuration of deploy/.
type proxy struct {
	url, caFile string
	dir         string // all that it writes is below
	cmd         *exec.Cmd
	log         string // the file with its output
}

// startProxy starts a program that `.ci/setup` takes out of Debian's package, in front of a
// controller. It ends with the test.
func startProxy(t *testing.T, p *proxy, controller, name string, args ...string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	program := filepath.Join(cache, "takt", "tools", name)
	require.FileExists(t, program, "run `.ci/setup %s` once", name)
	p.log = filepath.Join(p.dir, name+".log")
	output, err := os.Create(p.log)
	require.NoError(t, err)
	defer output.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = p.dir, output, output
	p.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "XDG_DATA_HOME=" + p.dir, "XDG_CONFIG_HOME=" + p.dir, "TMPDIR=" + p.dir,
		"TAKT_UPSTREAMS=" + controller,
	}
	wait, err := tied.Start(p.cmd)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(os.Interrupt)
		_ = wait()
		if t.Failed() {
			said, _ := os.ReadFile(p.log)
			t.Logf("%s said:\n%s", name, said)
		}
	})
}

// replaced returns text with each old replaced by its new one. Each has to be there.
func replaced(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, text, pairs[i])
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

func startNginx(t *testing.T, dir, controller string) *proxy {
	t.Helper()
	port, plain := takttest.FreePort(t), takttest.FreePort(t)
	authority := tlstest.NewAuthority(t)
	cert, key := authority.Issue(t, dir, 1)
	p := &proxy{url: "https://localhost:" + port, caFile: filepath.Join(dir, "ca.pem"), dir: filepath.Join(dir, "nginx")}
	require.NoError(t, os.WriteFile(p.caFile, authority.PEM, 0o600))
	require.NoError(t, os.Mkdir(p.dir, 0o700))
	raw, err := os.ReadFile(takttest.File("deploy", "nginx", "takt.conf"))
	require.NoError(t, err)
	site := replaced(t, string(raw),
		"server 127.0.0.1:3000;", "server "+controller+";",
		"listen 443 ssl http2;", "listen 127.0.0.1:"+port+" ssl http2;", "listen [::]:443 ssl http2;", "",
		"listen 80;", "listen 127.0.0.1:"+plain+";", "listen [::]:80;", "",
		"takt.example.com", "localhost", "/etc/nginx/takt.crt", cert, "/etc/nginx/takt.key", key)
	config := fmt.Sprintf("daemon off;\nuser root;\nworker_processes 1;\npid %[1]s/pid;\nevents {}\nhttp {\naccess_log off;\n", dir)
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += fmt.Sprintf("%s_temp_path %s;\n", kind, filepath.Join(p.dir, kind))
	}
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(config+site+"}\n"), 0o600))
	startProxy(t, p, controller, "nginx", "-c", file, "-p", p.dir, "-e", "stderr")
	return p
}

func startCaddy(t *testing.T, dir, controller string) *proxy {
	t.Helper()
	port, plain := takttest.FreePort(t), takttest.FreePort(t)
	// Caddy is its own authority for localhost.
	p := &proxy{url: "https://localhost:" + port, dir: filepath.Join(dir, "caddy")}
	p.caFile = filepath.Join(p.dir, "caddy", "pki", "authorities", "local", "root.crt")
	require.NoError(t, os.Mkdir(p.dir, 0o700))
	site, err := filepath.Abs(takttest.File("deploy", "caddy", "Caddyfile"))
	require.NoError(t, err)
	file := filepath.Join(dir, "Caddyfile")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
		"{\n\tadmin off\n\tskip_install_trust\n\tdefault_bind 127.0.0.1\n\thttp_port %s\n\thttps_port %s\n}\nimport %s\n", plain, port, site), 0o600))
	startProxy(t, p, controller, "caddy", "run", "--config", file, "--adapter", "caddyfile")
	return p
}

// written is how many bytes lie in files below a directory.
func written(t *testing.T, dir string) (total int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil { // gone, should it fail
			total += info.Size()
		}
		return nil
	}))
	return total
}

// mostResident is the most memory that the processes of the proxy ever had.
func (p *proxy) mostResident(t *testing.T) (most int) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/status")
	require.NoError(t, err)
	for _, path := range processes {
		raw, _ := os.ReadFile(path) // gone, should it fail
		var pid, parent, peak int
		for line := range strings.Lines(string(raw)) {
			_, _ = fmt.Sscanf(line, "Pid: %d", &pid) // the other lines
			_, _ = fmt.Sscanf(line, "PPid: %d", &parent)
			_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &peak)
		}
		if own := p.cmd.Process.Pid; pid == own || parent == own {
			most += peak << 10
		}
	}
	require.Positive(t, most)
	return most
}

// halves is content that stops in the middle until it may go on.
type halves struct {
	sent, size int64
	goOn       <-chan struct{}
}

func (h *halves) Read(b []byte) (int, error) {
	left := h.size - h.sent
	if left == 0 {
		return 0, io.EOF
	}
	if half := h.size / 2; h.sent < half {
		left = half - h.sent
	} else {
		<-h.goOn
	}
	n := min(int64(len(b)), left)
	clear(b[:n]) // what it held before may be a boundary
	h.sent += n
	return int(n), nil
}

// TestInstallProxies runs nginx and Caddy in front of a controller, as operators would: with
// TLS, streams, long polls, an upload of 1 GiB, and a client that forges its address.
func TestInstallProxies(t *testing.T) {
	installTest(t)
	for name, start := range map[string]func(t *testing.T, dir, controller string) *proxy{"nginx": startNginx, "caddy": startCaddy} { // one after the other
		t.Run(name, func(t *testing.T) {
			env := takttest.NewEnv(t)
			c := env.StartController("takt", "TAKT_TRUSTED_PROXIES=127.0.0.1")
			p := start(t, env.Dir, c.Address)
			var roots *x509.CertPool
			takttest.Eventually(t, "it answers", func() bool {
				raw, err := os.ReadFile(p.caFile)
				roots = x509.NewCertPool()
				if err != nil || !roots.AppendCertsFromPEM(raw) {
					return false
				}
				through, err := client.New(client.Config{BaseURL: p.url, RootCAs: roots})
				require.NoError(t, err)
				defer through.CloseIdle()
				_, err = client.Call(t.Context(), through, api.IsReady, api.None{})
				return err == nil
			})
			examined := examine(t, p, c)
			uploadSlowly(t, p, c, roots)
			require.Less(t, p.mostResident(t), 200<<20)
			showForgedAddress(t, p, c, roots)
			require.Empty(t, <-examined)
			requireOutageIsExplained(t, p, c, roots)
		})
	}
}

// examine has takt doctor test streams, and a poll of 30 s, through the proxy. It sends what
// is wrong.
func examine(t *testing.T, p *proxy, c *process.Controller) <-chan string {
	t.Helper()
	result := make(chan string, 1)
	go func() {
		var out bytes.Buffer
		root := command.New(takttest.Environment("TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey))
		code := cli.Execute(context.WithoutCancel(t.Context()), root, []string{"doctor", "--url", p.url, "--ca-file", p.caFile}, &out, &out)
		for _, want := range []string{"the first bytes came at once, and it was open for 30s", "a poll of 30s came back whole"} {
			if code == 0 && !strings.Contains(out.String(), want) {
				code = -1
			}
		}
		if code != 0 {
			result <- fmt.Sprintf("takt doctor ended with %d:\n%s", code, out.String())
		}
		close(result)
	}()
	return result
}

// uploadSlowly uploads a result of 1 GiB, and stops in the middle: by then takt has that
// half, and the proxy has written nothing to its disk.
func uploadSlowly(t *testing.T, p *proxy, c *process.Controller, roots *x509.CertPool) {
	t.Helper()
	through, err := client.New(client.Config{BaseURL: p.url, APIKey: c.APIKey, RootCAs: roots})
	require.NoError(t, err)
	defer through.CloseIdle()
	me, err := through.Register(t.Context(), api.Register{Name: "one", Capabilities: json.RawMessage(`{"platforms":["android"]}`)})
	require.NoError(t, err)
	id := takttest.Submit(t, c, []byte("source"))
	reply, err := through.Poll(t.Context(), client.Poll{Token: me.AccessToken, Wait: 20 * time.Second})
	require.NoError(t, err)
	require.NotNil(t, reply.Job)
	require.Equal(t, id, reply.Job.ID)

	const size = 1 << 30
	before := written(t, p.dir)
	goOn, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		content := client.Content{Size: size, Open: func() (io.ReadCloser, error) {
			return io.NopCloser(&halves{size: size, goOn: goOn}), nil
		}}
		_, err := through.Upload(t.Context(), client.Upload{
			Held: client.Held{BuildID: id, WorkerID: me.ID, Token: reply.AccessToken}, Success: true, Result: &content,
		})
		ended <- err
	}()
	files := filepath.Join(c.DataDir, "files")
	takttest.Eventually(t, "the first half arrives", func() bool {
		select {
		case err := <-ended:
			require.NoError(t, err, "the upload ended early")
		default:
		}
		return written(t, files) > size/2-32<<20
	})
	require.Less(t, written(t, p.dir)-before, int64(1<<20), "the proxy keeps none of it")
	close(goOn)
	require.NoError(t, <-ended)
	require.Equal(t, "completed", takttest.Status(t, c, id).Status)
	require.Less(t, written(t, p.dir)-before, int64(1<<20))
}

// showForgedAddress shows a wrong key from an address of its own, and claims another one.
// takt names the address that connected to the proxy.
func showForgedAddress(t *testing.T, p *proxy, c *process.Controller, roots *x509.CertPool) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
			return (&net.Dialer{LocalAddr: from}).DialContext(ctx, network, strings.Replace(strings.TrimPrefix(p.url, "https://"), "localhost", "127.0.0.1", 1))
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/workers", http.NoBody)
	require.NoError(t, err)
	req.Header.Set(api.HeaderAPIKey, "not-the-key-0123456789")
	req.Header.Set("X-Forwarded-For", "192.0.2.7")
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	takttest.Eventually(t, "takt logs the address", func() bool { return strings.Contains(c.Output(), `"remote":"127.0.0.2"`) })
	require.NotContains(t, c.Output(), "192.0.2.7")
}

// requireOutageIsExplained takes the database away: takt's own reply comes through, although
// no controller is ready.
func requireOutageIsExplained(t *testing.T, p *proxy, c *process.Controller, roots *x509.CertPool) {
	t.Helper()
	takttest.Order(t, c, client.Order{Path: "database", Action: "terminate", Reason: "a test", Force: true})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	// Caddy notices after 2 s. A test for what happens afterwards has to be longer.
	for begin := time.Now(); time.Since(begin) < 5*time.Second; {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/workers", http.NoBody)
		require.NoError(t, err)
		req.Header.Set(api.HeaderAPIKey, c.APIKey)
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.NotEmpty(t, resp.Header.Get("Retry-After"), "%s", body)
		require.Contains(t, string(body), `"unavailable"`)
	}
}
