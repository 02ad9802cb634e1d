"""gate.run() over several processes: what is answered is saved, once and in order, whatever breaks."""
