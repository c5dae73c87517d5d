package main

import (
	"archive/zip"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	takthttp "takt/http"
	"takt/http/client"
	"takt/http/openapitest"
)

func zipOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	for name, content := range files {
		w, err := zw.Create(name)
		require.NoError(t, err)
		_, err = io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, zw.Close())
	return out.Bytes()
}

// unzip returns names and contents of an archive.
func unzip(t *testing.T, path string) string {
	t.Helper()
	zr, err := zip.OpenReader(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, zr.Close()) }()
	var out strings.Builder
	for _, f := range zr.File {
		r, err := f.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		fmt.Fprintf(&out, "%s: %s\n", f.Name, content)
	}
	return out.String()
}

// checked returns a client of c that holds each reply against the OpenAPI document.
func checked(t *testing.T, c *process.Controller) *client.Client {
	t.Helper()
	document, err := openapitest.Load(t.Context(), takthttp.OpenAPI())
	require.NoError(t, err)
	checking, err := client.New(client.Config{
		BaseURL: c.URL, APIKey: c.APIKey, AdminKey: c.AdminKey,
		HTTPClient: &http.Client{Transport: document.Transport(t, client.NewTransport())},
	})
	require.NoError(t, err)
	return checking
}

// postmaster returns the process id of c's embedded server.
func postmaster(t *testing.T, c *process.Controller) int {
	t.Helper()
	pid := 0
	eventually(t, "the server has a pid file", func() bool {
		n, err := c.Postmaster()
		pid = n
		return err == nil
	})
	return pid
}

func env(pairs ...string) func(string) (string, bool) {
	m := map[string]string{"HOME": "/home/somebody"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

// newKey makes an encryption key.
func newKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}
