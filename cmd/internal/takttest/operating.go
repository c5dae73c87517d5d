package takttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
)

// UnpackBundle returns the files of a bundle by name, and those of profiles without their
// compression, so that text in them can be found.
func UnpackBundle(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	zr, err := gzip.NewReader(f)
	require.NoError(t, err)
	files := map[string]string{}
	for tr := tar.NewReader(zr); ; {
		head, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		raw, err := io.ReadAll(tr)
		require.NoError(t, err)
		if inner, err := gzip.NewReader(bytes.NewReader(raw)); err == nil {
			raw, err = io.ReadAll(inner)
			require.NoError(t, err)
		}
		files[path.Base(head.Name)] = string(raw)
	}
}

// Trouble names everything of the tree that does not run, or was counted as
// restarted.
func Trouble(n *api.TreeNode) (all []string) {
	if n.Status != "running" || n.Restarts > 0 || n.Leaked > 0 {
		all = append(all, fmt.Sprintf("%s is %s, %d restarts, %d leaked", n.Path, n.Status, n.Restarts, n.Leaked))
	}
	for i := range n.Children {
		all = append(all, Trouble(&n.Children[i])...)
	}
	return all
}

// RequireWell fails the test if there is Trouble.
func RequireWell(t *testing.T, c *process.Controller, why ...any) {
	t.Helper()
	root, err := c.Client.Tree(t.Context(), client.TreeOptions{})
	require.NoError(t, err)
	require.Empty(t, Trouble(&root), why...)
}

// Order has an order to the tree carried out.
func Order(t *testing.T, c *process.Controller, o client.Order) client.Ordered {
	t.Helper()
	reply, err := c.Client.Operate(t.Context(), o)
	require.NoError(t, err)
	return reply
}

// Paths lists a node and all below it, parents first.
func Paths(n *api.TreeNode) []string {
	paths := []string{n.Path}
	for i := range n.Children {
		paths = append(paths, Paths(&n.Children[i])...)
	}
	return paths
}

// Session is a client without JavaScript that has logged in at c.
func Session(t *testing.T, c *process.Controller) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, Timeout: Patience}
	t.Cleanup(browser.CloseIdleConnections)
	resp, err := browser.PostForm(c.URL+"/login", url.Values{"key": {c.AdminKey}, "name": {"tester"}})
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode, "the login leads to a page that exists")
	return browser
}

// Page gets a page with a Session.
func Page(t *testing.T, browser *http.Client, at string) (status int, body string) {
	t.Helper()
	resp, err := browser.Get(at)
	require.NoError(t, err)
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(raw)
}
