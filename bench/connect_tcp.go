package bench

import (
	"errors"

	"iserd/internal/initiator"
)

var errNoTCP = errors.New("iscsi:// is not supported yet: use iser://")

func (c *Client) openTCP(initiator.Login) (initiator.Session, error) { return nil, errNoTCP }

func (c *Client) targetsTCP(initiator.Login) ([]initiator.Discovered, error) { return nil, errNoTCP }
