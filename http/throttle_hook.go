package http

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/hubspot"
	"takt/store"
)

// handleHubSpotAction handles POST /api/hubspot/action: HubSpot hands an action
// over. It is answered when the action is durable, so that HubSpot never believes
// to be rid of what could still be lost.
func (s *Server) handleHubSpotAction(ctx context.Context, c echo.Context) error {
	body, err := s.readRaw(c)
	if err != nil {
		return err
	}
	r := c.Request()
	if err := hubspot.Verify(s.cfg.HubSpotSecret, r.Method, hubspot.URI(s.cfg.PublicURL, r), body, r.Header, time.Now()); err != nil {
		return store.Wrap(store.Unauthorized, "Invalid signature", err)
	}
	action, err := hubspot.ParseAction(body)
	if err != nil {
		return err
	}
	action.Expires = s.cfg.HubSpotExpiration
	accepted, err := s.deps.Throttle.Accept(ctx, action)
	if err != nil {
		return err
	}
	return s.replyAction(c, accepted)
}

// readRaw reads a body to the byte: signatures are on these.
func (s *Server) readRaw(c echo.Context) ([]byte, error) {
	req := c.Request()
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	if req.ContentLength > s.cfg.MaxJSON {
		return nil, store.NewError(store.TooLarge, "Request body too large")
	}
	body, err := io.ReadAll(req.Body)
	if _, ok := errors.AsType[*store.Error](err); ok {
		return nil, err
	}
	if err != nil {
		return nil, store.Wrap(store.InvalidArgument, "Request body is incomplete", err)
	}
	return body, nil
}

// replyAction tells HubSpot where an action stands. Without HubSpotBlock a waiting
// one is acknowledged with 204.
func (s *Server) replyAction(c echo.Context, a store.Acceptance) error {
	reply := hubspot.Reply{}
	switch a.State {
	case store.ActionWaiting:
		if !s.cfg.HubSpotBlock {
			return c.NoContent(http.StatusNoContent)
		}
		reply.OutputFields = hubspot.OutputFields{State: hubspot.Block, Expiration: hubspot.Duration(a.Remaining)}
	case store.ActionCompleted:
		if !s.cfg.HubSpotBlock {
			return c.NoContent(http.StatusNoContent) // HubSpot reads SUCCESS in it
		}
		reply.OutputFields.State = hubspot.Success
	default: // given up, or too late: the workflow is to go on
		reply.OutputFields.State = hubspot.FailContinue
	}
	return s.reply(c, http.StatusOK, reply)
}

// handleOAuthAuthorize handles GET /api/oauth/authorize: it sends an installer to
// HubSpot's page.
func (s *Server) handleOAuthAuthorize(ctx context.Context, c echo.Context) error {
	at, err := s.deps.OAuth.Authorize(ctx)
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.Redirect(http.StatusFound, at)
}

// handleOAuthCallback handles GET /api/oauth/callback, to which HubSpot sends the
// installer back.
func (s *Server) handleOAuthCallback(ctx context.Context, c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	c.Response().Header().Set("Referrer-Policy", "no-referrer") // the code is in the address
	portal, err := s.deps.OAuth.Install(ctx, c.QueryParam("state"), c.QueryParam("code"))
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, installedReply(portal))
}
