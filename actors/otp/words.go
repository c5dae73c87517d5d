package otp

// String returns OTP's word for the restart type.
func (r Restart) String() string {
	switch r {
	case Permanent:
		return "permanent"
	case Transient:
		return "transient"
	case Temporary:
		return "temporary"
	}
	return "unknown"
}

// String returns OTP's word for the strategy.
func (s Strategy) String() string {
	switch s {
	case OneForOne:
		return "one_for_one"
	case OneForAll:
		return "one_for_all"
	case RestForOne:
		return "rest_for_one"
	case Dynamic:
		return "simple_one_for_one"
	}
	return "unknown"
}

// String returns OTP's word for the child type.
func (t ChildType) String() string {
	if t == Supervisor {
		return "supervisor"
	}
	return "worker"
}
