package kernelpath

// results are the names of the program's results.
var results = [...]string{
	programResultANSWERED: "answered",
	programResultMISS:     "miss",
	programResultSHAPE:    "unsupported",
	programResultEXPIRED:  "expired",
	programResultCHANGED:  "outdated",
	programResultLAPSED:   "heartbeat_expired",
	programResultSTRANGER: "unknown_client",
	programResultMOVED:    "client_moved",
	programResultRENEWAL:  "client_recheck",
	programResultBUSY:     "busy",
	programResultFAILED:   "failed",
	programResultLIMITED:  "client_limit",
	programResultEXCEEDED: "client_limit_passed",
}
