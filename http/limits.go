package http

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// limitPoll counts a poll against its worker. A worker without a token shares
// its id's quota with whoever else names that id, one with a token with nobody:
// ids can be read in lists, tokens can't.
func (s *Server) limitPoll(h http.Header, req store.PollRequest) error {
	key := req.WorkerID
	if n := req.Token.Worker; n != 0 {
		key = string([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return s.polls.admit(h, key)
}

// serveRegister serves a registration, unless its address has sent too many.
func (s *Server) serveRegister(c echo.Context, r route) error {
	if s.registrations != nil {
		if err := s.registrations.admit(c.Response().Header(), quotaAddr(s.remote(c.Request()))); err != nil {
			return err
		}
	}
	return s.serveActor(c, r)
}
