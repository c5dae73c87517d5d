package http

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/certs"
	"takt/store"
)

// keychainBytes is how many random bytes a keychain's password has.
const keychainBytes = 24

// handleBuildCertsSecure handles GET /api/builds/:id/certs-secure: the unpacked
// certificates, for a virtual machine that can't unpack them itself.
func (s *Server) handleBuildCertsSecure(ctx context.Context, c echo.Context) error {
	sign, err := s.holder(c)
	if err != nil {
		return err
	}
	b, err := s.deps.Builds.Held(ctx, sign)
	if err != nil {
		return err
	}
	if err := s.touch(ctx, sign); err != nil {
		return err
	}
	bundle, err := s.unpackCerts(ctx, b)
	if err != nil {
		return err
	}
	password := make([]byte, keychainBytes)
	_, _ = rand.Read(password) // never fails
	c.Response().Header().Set("Cache-Control", "no-store")
	return s.reply(c, http.StatusOK, api.SecureCerts{
		P12: bundle.P12, P12Password: bundle.Password, ProvisioningProfiles: bundle.Profiles,
		KeychainPassword: base64.StdEncoding.EncodeToString(password),
	})
}

// unpackCerts reads the certificates of b.
func (s *Server) unpackCerts(ctx context.Context, b store.Build) (certs.Bundle, error) {
	const missing = "Certs not found"
	if b.Certs == nil {
		return certs.Bundle{}, store.NewError(store.NotFound, missing)
	}
	file, err := s.deps.Files.OpenSealed(ctx, *b.Certs)
	if err != nil {
		return certs.Bundle{}, notThere(err, missing)
	}
	defer file.Close() //nolint:errcheck // only read from
	archive, err := io.ReadAll(file)
	if err != nil {
		return certs.Bundle{}, err
	}
	bundle, err := certs.Unpack(bytes.NewReader(archive), int64(len(archive)), certs.MaxBytes)
	if err != nil {
		return bundle, store.Wrap(store.CertsUnusable, "Failed to process certs file", err)
	}
	return bundle, nil
}
