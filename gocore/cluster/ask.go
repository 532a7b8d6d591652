package cluster

import (
	"bytes"
	"compress/gzip"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/van"
	"fptps/gocore/wire/pspb"
)

// answers is the present answer to questions about the status.
type answers struct {
	packed []byte
	at     time.Time
}

// stepStatusAsk answers the question about the status. Only one who knows the secret learns anything.
func (s *Scheduler) stepStatusAsk(now time.Time, ask *pspb.StatusAsk) {
	if subtle.ConstantTimeCompare([]byte(ask.GetSecret()), []byte(s.c.Secret)) != 1 {
		s.do(Answer{&pspb.Meta{Own: &pspb.Meta_Refused{Refused: &pspb.Refused{Reason: proto.String("another FPTPS_TOKEN")}}}})
		return
	}
	if s.answers.packed == nil || now.Sub(s.answers.at) >= answerTime {
		encoded, err := pack(s.Status(now))
		if err != nil { // a float that is no number
			s.do(Note{Text: "the status cannot be encoded: " + err.Error()})
			return
		}
		s.answers = answers{encoded, now}
	}
	s.do(Answer{&pspb.Meta{Own: &pspb.Meta_Status{Status: &pspb.Status{Json: s.answers.packed}}}})
}

// AskStatus asks the scheduler at an address for the state of its cluster: a Status as JSON.
func AskStatus(host string, port int, secret string, timeout time.Duration) ([]byte, error) {
	question := &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Heartbeat)}, Own: &pspb.Meta_StatusAsk{StatusAsk: &pspb.StatusAsk{Secret: proto.String(secret)}}}
	answer, err := van.Ask(host, port, question, timeout)
	switch {
	case err == van.ErrSilent:
		return nil, fault.New(fault.Connect, "a process listens at %s:%d, but has not answered within %v: it is no scheduler of this version of fptps, or stands still", host, port, timeout)
	case err != nil:
		return nil, fault.New(fault.Connect, "no scheduler can be reached at %s:%d: %v. Has the run ended, or does it have another DMLC_PS_ROOT_URI or DMLC_PS_ROOT_PORT?", host, port, err)
	case answer.GetRefused() != nil:
		return nil, fault.New(fault.Config, "the scheduler at %s:%d does not answer this question: %s. Set FPTPS_TOKEN to that of the run", host, port, clip(answer.GetRefused().GetReason()))
	}
	status, err := unpack(answer.GetStatus().GetJson())
	if err != nil {
		return nil, fault.New(fault.Connect, "the scheduler at %s:%d has sent a status that makes no sense: %v", host, port, err)
	}
	return status, nil
}

// pack encodes a status as JSON, and packs it by gzip.
func pack(status Status) ([]byte, error) {
	encoded, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(encoded) // a Buffer takes all
	w.Close()
	return b.Bytes(), nil
}

// unpack undoes pack.
func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	encoded, err := io.ReadAll(io.LimitReader(r, maxStatus))
	if err == nil && !json.Valid(encoded) {
		err = errors.New("it is no JSON")
	}
	return encoded, err
}
