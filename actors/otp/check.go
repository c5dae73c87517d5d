package otp

import "time"

// check returns what is wrong with the flags, in OTP's order and words.
func (s *SupSpec) check() error {
	bad := func(problem string, value any) error {
		return &SpecError{Group: "supervisor_data", Problem: problem, Value: value}
	}
	switch {
	case s.Strategy > Dynamic:
		return bad("invalid_strategy", s.Strategy)
	case s.Intensity < 0:
		return bad("invalid_intensity", s.Intensity)
	case s.Period < time.Second:
		return bad("invalid_period", s.Period)
	case s.AutoShutdown > AllSignificant:
		return bad("invalid_auto_shutdown", s.AutoShutdown)
	case s.Strategy == Dynamic && len(s.Children) != 1:
		return &SpecError{Group: "bad_start_spec", Problem: "template", Value: s.ids()}
	}
	return s.checkChildren()
}

func (s *SupSpec) ids() []string {
	ids := make([]string, len(s.Children))
	for i := range s.Children {
		ids[i] = s.Children[i].ID
	}
	return ids
}

func (s *SupSpec) checkChildren() error {
	seen := make(map[string]bool, len(s.Children))
	for i := range s.Children {
		c := &s.Children[i]
		err := c.check(s.AutoShutdown)
		if err == nil && seen[c.ID] {
			err = &SpecError{Problem: "duplicate_child_name", Value: c.ID}
		}
		if err != nil {
			err.Group = "start_spec"
			return err
		}
		seen[c.ID] = true
	}
	return nil
}

// check returns what is wrong with a child specification.
func (c *ChildSpec) check(auto AutoShutdown) *SpecError {
	switch {
	case c.ID == "":
		return &SpecError{Problem: "missing_id"}
	case c.starts() != 1:
		return &SpecError{Problem: "invalid_start", Value: c.ID}
	case c.Restart > Temporary:
		return &SpecError{Problem: "invalid_restart_type", Value: c.Restart}
	case c.Significant && auto == Never:
		return &SpecError{Problem: "bad_combination", Value: "auto_shutdown never, significant"}
	case c.Significant && c.Restart == Permanent:
		return &SpecError{Problem: "bad_combination", Value: "restart permanent, significant"}
	case c.Shutdown < 0 && c.Shutdown != BrutalKill:
		return &SpecError{Problem: "invalid_shutdown", Value: c.Shutdown}
	}
	return nil
}

// starts counts the start functions that are set.
func (c *ChildSpec) starts() int {
	n := 0
	for _, set := range []bool{
		c.Server != nil, c.Task != nil, c.Supervisor != nil,
		c.ServerArgs != nil, c.TaskArgs != nil, c.SupervisorArgs != nil,
	} {
		if set {
			n++
		}
	}
	return n
}
